import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transaction producer; each line of its standard input sends one: TOPIC BODY EXECUTED CHECKED.
 *
 * <p>The two last are what its listener says, as COMMIT_MESSAGE; CHECKED travels as a property, so
 * any producer of the group can answer. The answer is the receipt; each check prints a line too.
 */
final class Transactor {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        TransactionMQProducer producer = new TransactionMQProducer(given.get("group"));
        producer.setInstanceName("java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(given.get("name_servers"));
        producer.setSendMsgTimeout(Lines.SEND_TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String state = message.getUserProperty("checked");
                Lines.print("checked", new String(message.getBody(), StandardCharsets.UTF_8),
                    "topic", message.getTopic(), "queue", message.getQueueId(),
                    "transaction", message.getTransactionId());
                return LocalTransactionState.valueOf(state);
            }
        });
        producer.start();
        Lines.print("ready", producer.buildMQClientId());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            Message message = new Message(words[0], words[1].getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("checked", words[3]);
            TransactionSendResult sent = producer.sendMessageInTransaction(
                message, LocalTransactionState.valueOf(words[2]));
            Lines.print("sent", words[1], "id", sent.getMsgId(), "transaction",
                sent.getTransactionId(), "state", sent.getLocalTransactionState(), "queue",
                sent.getMessageQueue().getQueueId(), "broker",
                sent.getMessageQueue().getBrokerName());
        }
        producer.shutdown();
        System.exit(0); // the client leaves threads behind
    }
}
