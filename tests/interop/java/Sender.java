import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A producer; each line of its standard input sends: WAY TOPIC FIRST COUNT KEYS [TAG].
 *
 * <p>The messages are numbered from FIRST, of KEYS sharding keys in turn. The answer is one line:
 * the receipts, none of one-way messages.
 */
final class Sender {
    private static final long DEADLINE_S = 20;
    private static final String SHARDING_KEY = "__SHARDINGKEY"; // 4.9 has no constant for it

    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        SessionCredentials account =
            new SessionCredentials(given.get("access_key"), given.get("secret_key"));
        RPCHook signs = given.containsKey("access_key") ? new AclClientRPCHook(account) : null;
        boolean isTraced = "true".equals(given.get("trace"));
        DefaultMQProducer producer = new DefaultMQProducer("java-sender", signs, isTraced, null);
        producer.setInstanceName("java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(given.get("name_servers"));
        producer.setSendMsgTimeout(Lines.SEND_TIMEOUT_MS);
        if (given.containsKey("namespace")) {
            producer.setNamespace(given.get("namespace"));
        }
        producer.start();
        Lines.print("ready", producer.buildMQClientId());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            List<Message> messages = new ArrayList<>();
            int first = Integer.parseInt(words[2]);
            int keys = Integer.parseInt(words[4]);
            for (int number = first; number < first + Integer.parseInt(words[3]); number++) {
                messages.add(message(words, number, "k" + number % keys));
            }
            Lines.print("sent", receipts(producer, words[0], messages));
        }
        producer.shutdown();
        System.exit(0); // the client leaves threads behind
    }

    private static Message message(String[] words, int number, String key) {
        Message message = new Message(words[1], words.length > 5 ? words[5] : null,
            "word-" + number + " all", String.valueOf(number).getBytes(StandardCharsets.UTF_8));
        MessageAccessor.putProperty(message, SHARDING_KEY, key);
        message.putUserProperty("名", "订单 😀");
        message.setFlag(number);
        return message;
    }

    private static List<Object> receipts(
        DefaultMQProducer producer, String way, List<Message> messages) throws Exception {
        List<Object> found = new ArrayList<>();
        List<CompletableFuture<SendResult>> pending = new ArrayList<>();
        for (Message message : messages) {
            String key = message.getProperty(SHARDING_KEY);
            switch (way) {
                case "sync":
                    add(found, producer.send(message));
                    break;
                case "large":
                    message.setBody("x".repeat(1 << 20).getBytes(StandardCharsets.UTF_8));
                    add(found, producer.send(message));
                    break;
                case "delayed":
                    message.setDelayTimeLevel(1);
                    add(found, producer.send(message));
                    break;
                case "oneway":
                    producer.sendOneway(message);
                    break;
                case "async":
                    pending.add(new CompletableFuture<>());
                    producer.send(message, callback(pending.get(pending.size() - 1)));
                    break;
                case "ordered":
                    add(found, producer.send(message, new SelectMessageQueueByHash(), key));
                    break;
                case "batch":
                    break;
                default:
                    throw new IllegalArgumentException(way);
            }
        }
        if (way.equals("batch")) {
            add(found, producer.send(messages));
        }
        for (CompletableFuture<SendResult> each : pending) {
            add(found, each.get(DEADLINE_S, TimeUnit.SECONDS));
        }
        return found;
    }

    private static SendCallback callback(CompletableFuture<SendResult> result) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        };
    }

    private static void add(List<Object> found, SendResult sent) {
        found.add(Map.of("broker", sent.getMessageQueue().getBrokerName(), "queue",
            sent.getMessageQueue().getQueueId(), "offset", sent.getQueueOffset(), "id",
            sent.getMsgId(), "stored_id", sent.getOffsetMsgId(), "status",
            sent.getSendStatus().name()));
    }
}
