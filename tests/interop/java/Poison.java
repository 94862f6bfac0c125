import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** An orderly consumer that lets a message pass once its reconsumeTimes are high; tells each call. */
final class Poison {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        String poison = given.get("poison");
        int passes = Integer.parseInt(given.get("passes"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(given.get("group"));
        consumer.setNamesrvAddr(given.get("name_servers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(given.get("batch")));
        consumer.setSuspendCurrentQueueTimeMillis(10);
        consumer.setMaxReconsumeTimes(Integer.parseInt(given.getOrDefault("most", "-1")));
        consumer.subscribe(given.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            boolean fails = false;
            StringBuilder call = new StringBuilder();
            for (MessageExt message : messages) {
                call.append(message.getQueueOffset()).append(':')
                    .append(message.getReconsumeTimes()).append(' ');
                fails |= new String(message.getBody()).equals(poison)
                    && message.getReconsumeTimes() < passes;
            }
            Lines.print("call", call.toString().trim());
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Lines.print("ready", true);
        while (System.in.read() >= 0) {
            // Whoever started us closes this when we shall leave.
        }
        consumer.shutdown();
        System.exit(0); // the client leaves threads behind
    }
}
