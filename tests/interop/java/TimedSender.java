import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * A producer; each line of its standard input sends a message due later, TOPIC DELAY_MS, or takes
 * one back, TOPIC HANDLE. Recall is looked up by name: clients before 5.3.2 do not have it.
 */
final class TimedSender {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        DefaultMQProducer producer = new DefaultMQProducer("java-timed");
        producer.setInstanceName("java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(given.get("name_servers"));
        producer.setSendMsgTimeout(Lines.SEND_TIMEOUT_MS);
        producer.start();
        Lines.print("ready", producer.buildMQClientId());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[1].chars().allMatch(Character::isDigit)) {
                Message message = new Message(words[0], "later".getBytes(StandardCharsets.UTF_8));
                MessageAccessor.putProperty(message, "TIMER_DELAY_MS", words[1]);
                SendResult sent = producer.send(message);
                Lines.print("id", sent.getMsgId(), "handle", handle(sent));
            } else {
                Method recall = DefaultMQProducer.class.getMethod(
                    "recallMessage", String.class, String.class);
                Lines.print("recalled", recall.invoke(producer, words[0], words[1]));
            }
        }
        producer.shutdown();
        System.exit(0); // the client leaves threads behind
    }

    private static Object handle(SendResult sent) throws ReflectiveOperationException {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(sent);
        } catch (NoSuchMethodException older) {
            return null;
        }
    }
}
