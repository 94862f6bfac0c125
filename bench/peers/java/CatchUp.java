import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Java's client catches up: `java CatchUp NAME_SERVER TOPIC GROUP BATCH PULL_SIZE MESSAGES WARM
 * [OPTION...]`. Options are `tls`, which trusts every server, `account`, and `reading`.
 */
public final class CatchUp {
    private static volatile long sum;

    private CatchUp() {}

    /** What most listeners read; the sum keeps the compiler from leaving it out. */
    private static void read(MessageExt message) {
        String key = message.getProperty(MessageConst.PROPERTY_SHARDING_KEY);
        sum += message.getBody().length + message.getProperties().size()
            + length(message.getTags()) + length(message.getKeys()) + length(key);
    }

    private static int length(String text) {
        return text == null ? 0 : text.length();
    }

    public static void main(String[] args) throws Exception {
        int batch = Integer.parseInt(args[3]);
        long wanted = Long.parseLong(args[5]);
        long warm = Long.parseLong(args[6]);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        AtomicLong counted = new AtomicLong();
        AtomicLong firstWall = new AtomicLong();
        AtomicLong firstCpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);

        List<String> options = Arrays.asList(args).subList(7, args.length);
        DefaultMQPushConsumer consumer = options.contains("account")
            ? new DefaultMQPushConsumer(args[2], new AclClientRPCHook(
                new SessionCredentials("bench", "secret-of-bench")))
            : new DefaultMQPushConsumer(args[2]);
        consumer.setUseTLS(options.contains("tls"));
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.setPullBatchSize(Integer.parseInt(args[4]));
        consumer.subscribe(args[1], "*");
        boolean reads = options.contains("reading");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            if (reads) {
                messages.forEach(CatchUp::read);
            }
            long before = counted.getAndAdd(messages.size());
            if (before <= warm && warm < before + messages.size()) {
                firstWall.set(System.nanoTime());
                firstCpu.set(system.getProcessCpuTime());
            }
            if (before + messages.size() >= wanted) {
                done.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        if (!done.await(300, TimeUnit.SECONDS)) {
            System.err.println("only " + counted + " of " + wanted + " messages within 300 s");
            System.exit(1);
        }
        double seconds = (System.nanoTime() - firstWall.get()) / 1e9;
        double cpuSeconds = (system.getProcessCpuTime() - firstCpu.get()) / 1e9;
        consumer.shutdown();
        System.out.println("{\"peer\": \"Java client, batch " + batch + "\", \"messages\": "
            + (counted.get() - warm)
            + ", \"seconds\": " + seconds + ", \"cpu_seconds\": " + cpuSeconds
            + ", \"detail\": {\"java\": \"" + System.getProperty("java.version") + "\"}}");
        System.exit(0);
    }
}
