import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Each line of standard input is a request: TOPIC BODY TIMEOUT_MS; the reply is printed.
 *
 * <p>With replies=TOPIC it also replies to the requests of that topic, "java: " and their body.
 */
final class Asker {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        DefaultMQProducer producer = new DefaultMQProducer(given.get("group"), signs(given));
        producer.setInstanceName("java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(given.get("name_servers"));
        producer.setSendMsgTimeout(Lines.SEND_TIMEOUT_MS);
        if (given.containsKey("namespace")) {
            producer.setNamespace(given.get("namespace"));
        }
        producer.start();
        if (given.containsKey("replies")) {
            reply(producer, given);
        }
        Lines.print("ready", producer.buildMQClientId());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Message message = new Message(words[0], words[1].getBytes(StandardCharsets.UTF_8));
            CompletableFuture<Message> answer = new CompletableFuture<>();
            // 5.3.3 ends the form that waits once the broker has the request, with no reply, and
            // calls back then, too; later versions only with the reply.
            producer.request(message, new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    if (reply != null) {
                        answer.complete(reply);
                    }
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            }, Long.parseLong(words[2]));
            try {
                Message reply = answer.get();
                Lines.print("reply", new String(reply.getBody(), StandardCharsets.UTF_8),
                    "topic", reply.getTopic(), "own", reply.getUserProperty("own"));
            } catch (ExecutionException error) {
                Lines.print("failed", words[1], "how", error.getCause().toString());
            }
        }
        producer.shutdown();
        System.exit(0); // the client leaves threads behind
    }

    private static RPCHook signs(Map<String, String> given) {
        return given.containsKey("access_key")
            ? new AclClientRPCHook(
                new SessionCredentials(given.get("access_key"), given.get("secret_key")))
            : null;
    }

    private static void reply(DefaultMQProducer producer, Map<String, String> given)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            given.get("group") + "-c", signs(given), new AllocateMessageQueueAveragely());
        consumer.setInstanceName("java-c-" + ProcessHandle.current().pid());
        consumer.setNamesrvAddr(given.get("name_servers"));
        if (given.containsKey("namespace")) {
            consumer.setNamespace(given.get("namespace"));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(given.get("replies"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String asked = new String(message.getBody(), StandardCharsets.UTF_8);
                    byte[] body = ("java: " + asked).getBytes(StandardCharsets.UTF_8);
                    Message reply = MessageUtil.createReplyMessage(message, body);
                    reply.putUserProperty("own", "ä");
                    producer.send(reply, 3000);
                } catch (Exception error) {
                    error.printStackTrace(); // what is no request cannot be replied to
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }
}
