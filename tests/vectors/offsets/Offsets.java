import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * The offset file of a broadcasting member, by Java's own class.
 *
 * <pre>
 * java -cp "$(ci/rocketmq.sh jars 5.3.3)" tests/vectors/offsets/Offsets.java > tests/vectors/offsets/5.3.3.json
 * java -cp "$(ci/rocketmq.sh jars 5.3.3)" tests/vectors/offsets/Offsets.java FILE    # what Java reads in FILE
 * </pre>
 */
public class Offsets {
    public static void main(String[] args) throws Exception {
        OffsetSerializeWrapper offsets = new OffsetSerializeWrapper();
        if (args.length > 0) {
            String text = new String(Files.readAllBytes(Path.of(args[0])), StandardCharsets.UTF_8);
            Map<MessageQueue, AtomicLong> sorted = new TreeMap<>(
                RemotingSerializable.fromJson(text, OffsetSerializeWrapper.class).getOffsetTable());
            sorted.forEach((queue, offset) -> System.out.println(
                queue.getTopic() + " " + queue.getBrokerName() + " " + queue.getQueueId() + " " + offset));
            return;
        }
        put(offsets, "orders", "broker-a", 0, 5);
        put(offsets, "orders", "broker-a", 1, 0);
        put(offsets, "orders", "broker-b", 10, 3_000_000_000L);
        put(offsets, "%RETRY%g", "a\"b\\c", 3, Long.MAX_VALUE);
        System.out.print(offsets.toJson(true));
    }

    private static void put(OffsetSerializeWrapper into, String topic, String broker, int queue, long offset) {
        into.getOffsetTable().put(new MessageQueue(topic, broker, queue), new AtomicLong(offset));
    }
}
