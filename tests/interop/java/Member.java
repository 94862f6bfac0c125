import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A push consumer; prints each message it got; leaves when its standard input ends. */
final class Member {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        String group = given.get("group");
        String instance =
            given.getOrDefault("instance", "java-" + ProcessHandle.current().pid());
        long fails = Long.parseLong(given.getOrDefault("fails", "0"));
        long pauseMs = Long.parseLong(given.getOrDefault("listener_ms", "0"));

        DefaultMQPushConsumer named = new DefaultMQPushConsumer(group);
        named.setInstanceName(instance);
        History history = new History(given.get("history"), named.buildMQClientId(), group,
            Long.parseLong(given.get("to_boot_time_ns")));
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, history, new AllocateMessageQueueAveragely());
        consumer.setInstanceName(instance);
        consumer.setNamesrvAddr(given.get("name_servers"));
        if (given.containsKey("namespace")) {
            consumer.setNamespace(given.get("namespace"));
        }
        if (given.containsKey("broadcasting")) {
            var clustering = consumer.getMessageModel(); // 4.9 and 5.x have it in other packages
            consumer.setMessageModel(clustering.valueOf("BROADCASTING"));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            given.getOrDefault("where", "CONSUME_FROM_FIRST_OFFSET")));
        if (given.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(given.get("timestamp"));
        }
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(given.getOrDefault("batch", "4")));
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.subscribe(given.get("topic"), given.getOrDefault("tags", "*"));
        if (given.get("mode").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                MessageQueue queue = context.getMessageQueue();
                history.start(queue, messages);
                pause(pauseMs);
                boolean failed = messages.get(0).getReconsumeTimes() < fails;
                if (!failed) {
                    print(messages);
                }
                history.end(queue, messages, failed ? 0 : messages.size());
                context.setSuspendCurrentQueueTimeMillis(10);
                return failed ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                pause(pauseMs);
                if (messages.get(0).getReconsumeTimes() < fails) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                print(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        try {
            consumer.start();
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1); // its threads would keep the process alive
        }
        Lines.print("ready", consumer.buildMQClientId());
        while (System.in.read() >= 0) {
            // Whoever started us closes this when we shall leave.
        }
        consumer.shutdown();
        history.close();
        Lines.print("left", true);
        System.exit(0); // the client leaves threads behind
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            Received.print(message);
        }
    }
}
