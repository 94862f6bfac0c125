import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.MessageExt;

/** A received message as a line. */
final class Received {
    private Received() {}

    static void print(MessageExt message) {
        Lines.print("topic", message.getTopic(), "broker", message.getBrokerName(), "queue",
            message.getQueueId(), "offset", message.getQueueOffset(), "key",
            message.getProperty("__SHARDINGKEY"), "tags", message.getTags(), "keys",
            message.getKeys(), "flag", message.getFlag(), "reconsumed",
            message.getReconsumeTimes(), "body",
            new String(message.getBody(), StandardCharsets.ISO_8859_1), "properties",
            message.getProperties(), "id", message.getMsgId());
    }
}
