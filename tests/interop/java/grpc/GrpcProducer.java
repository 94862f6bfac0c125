import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * A producer of RocketMQ 5's own client: GrpcProducer PORT TOPIC, with a line "GROUP BODY" for each
 * message, which is answered once it is stored. Ends with its standard input. Run from source.
 */
final class GrpcProducer {
    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        // The client gives its own start 3 s, in which a busy machine's proxy may not answer.
        ClientConfiguration proxy =
                ClientConfiguration.newBuilder()
                        .setEndpoints("127.0.0.1:" + args[0])
                        .setRequestTimeout(Duration.ofSeconds(30))
                        .build();
        try (Producer producer = provider.newProducerBuilder()
                        .setClientConfiguration(proxy)
                        .setTopics(args[1])
                        .build();
                BufferedReader lines = new BufferedReader(
                        new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            System.out.println("{\"ready\": true}");
            String line;
            while ((line = lines.readLine()) != null) {
                String[] words = line.split(" ");
                Message message = provider.newMessageBuilder()
                        .setTopic(args[1])
                        .setMessageGroup(words[0])
                        .setBody(words[1].getBytes(StandardCharsets.UTF_8))
                        .build();
                System.out.printf("{\"id\": \"%s\"}%n", producer.send(message).getMessageId());
            }
        }
    }
}
