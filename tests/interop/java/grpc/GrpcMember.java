import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;

/**
 * A push consumer of RocketMQ 5's own client: GrpcMember PORT TOPIC GROUP. Prints a line for each
 * message, whose body and group are plain words; leaves when its standard input ends. Run from source.
 */
final class GrpcMember {
    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        // The client gives its own start 3 s, in which a busy machine's proxy may not answer.
        ClientConfiguration proxy =
                ClientConfiguration.newBuilder()
                        .setEndpoints("127.0.0.1:" + args[0])
                        .setRequestTimeout(Duration.ofSeconds(30))
                        .build();
        PushConsumer consumer = provider.newPushConsumerBuilder()
                .setClientConfiguration(proxy)
                .setConsumerGroup(args[2])
                .setSubscriptionExpressions(Map.of(args[1], FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                    String line = String.format(
                            "{\"key\": \"%s\", \"body\": \"%s\"}",
                            message.getMessageGroup().orElse(""), body);
                    synchronized (System.out) {
                        System.out.println(line);
                    }
                    return ConsumeResult.SUCCESS;
                })
                .build();
        System.out.println("{\"ready\": true}");
        System.in.readAllBytes();
        consumer.close();
    }
}
