import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A lite pull consumer; prints each message it polled; leaves after so many. */
final class Puller {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        int left = Integer.parseInt(given.get("count"));
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(given.get("group"));
        consumer.setInstanceName("java-" + ProcessHandle.current().pid());
        consumer.setNamesrvAddr(given.get("name_servers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(given.get("topic"), given.getOrDefault("tags", "*"));
        consumer.start();
        Lines.print("ready", consumer.buildMQClientId());
        while (left > 0) {
            for (MessageExt message : consumer.poll(1000)) {
                Received.print(message);
                left--;
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        Lines.print("left", true);
        System.exit(0); // the client leaves threads behind
    }
}
