import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;

/**
 * RocketMQ 5's own push consumer, which reads what waits: GrpcCatchUp PROXY TOPIC GROUP WARM
 * MESSAGES NAME. Prints the line of bench/peers/README.md; each message counts once. Run from source.
 */
final class GrpcCatchUp {
    private static final Set<String> SEEN = new HashSet<>();
    private static int calls;
    private static long beganNs;
    private static long beganCpuNs;
    private static String line;

    public static void main(String[] args) throws Exception {
        int warm = Integer.parseInt(args[3]);
        int messages = Integer.parseInt(args[4]);
        CountDownLatch over = new CountDownLatch(1);
        ClientConfiguration proxy =
                ClientConfiguration.newBuilder()
                        .setEndpoints(args[0])
                        .setRequestTimeout(Duration.ofSeconds(30))
                        .build();
        ClientServiceProvider.loadService()
                .newPushConsumerBuilder()
                .setClientConfiguration(proxy)
                .setConsumerGroup(args[2])
                .setSubscriptionExpressions(Map.of(args[1], FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                    synchronized (SEEN) {
                        calls++;
                        if (SEEN.add(body.substring(0, 10))) {
                            count(warm, messages, args[5], over);
                        }
                    }
                    return ConsumeResult.SUCCESS;
                })
                .build();
        if (!over.await(200, TimeUnit.SECONDS)) {
            System.err.println("only " + SEEN.size() + " messages");
            System.exit(1);
        }
        System.out.println(line);
        System.out.flush();
        Runtime.getRuntime().halt(0); // a close would wait for long polls
    }

    private static void count(int warm, int messages, String name, CountDownLatch over) {
        if (SEEN.size() == warm) {
            beganNs = System.nanoTime();
            beganCpuNs = cpuNs();
        }
        if (SEEN.size() == warm + messages) {
            line =
                    String.format(
                            "{\"peer\": \"%s\", \"messages\": %d, \"seconds\": %.6f, "
                                    + "\"cpu_seconds\": %.6f, \"again\": %d, "
                                    + "\"detail\": {\"java\": \"%s\"}}",
                            name,
                            messages,
                            (System.nanoTime() - beganNs) / 1e9,
                            (cpuNs() - beganCpuNs) / 1e9,
                            calls - SEEN.size(),
                            System.getProperty("java.version"));
            over.countDown();
        }
    }

    private static long cpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
                        ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }
}
