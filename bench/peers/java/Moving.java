import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Java's member of a group whose queues move: `java Moving NAME_SERVER TOPIC GROUP HISTORY
 * LISTENER_MS`; the same as bench/end_to_end/hand_off_member.py. It writes the START and END
 * events of a history, prints a line at the first call of each queue, and leaves at SIGTERM.
 */
public final class Moving {
    private Moving() {}

    public static void main(String[] args) throws Exception {
        String process = "java-" + ProcessHandle.current().pid();
        long pauseMs = Long.parseLong(args[4]);
        long toBootTime = Long.getLong("toBootTimeNs");
        PrintWriter history = new PrintWriter(Files.newBufferedWriter(Path.of(args[3])), true);
        AtomicLong sequence = new AtomicLong();
        Set<Integer> known = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0); // one a call, as set by default
            int queue = message.getQueueId();
            String members = "\"p\": \"" + process + "\", \"topic\": \"" + args[1]
                + "\", \"queue\": " + queue + ", \"offs\": [" + message.getQueueOffset() + "]";
            synchronized (history) {
                history.println("{\"type\": \"START\", \"seq\": " + sequence.incrementAndGet()
                    + ", \"t\": " + (System.nanoTime() + toBootTime) + ", " + members + "}");
            }
            if (known.add(queue)) {
                System.out.println("assigned " + queue);
            }
            if (pauseMs > 0) {
                try {
                    Thread.sleep(pauseMs);
                } catch (InterruptedException error) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            synchronized (history) {
                history.println("{\"type\": \"END\", \"seq\": " + sequence.incrementAndGet()
                    + ", \"t\": " + (System.nanoTime() + toBootTime) + ", \"done\": 1, "
                    + members + "}");
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        CountDownLatch left = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.shutdown();
            history.close();
            Runtime.getRuntime().halt(0); // a clean end, which SIGTERM's 143 would hide
        }));
        consumer.start();
        left.await();
    }
}
