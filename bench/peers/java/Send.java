import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Java's producer: `java Send NAME_SERVER TOPIC THREADS BATCH MESSAGES WARM BODY_BYTES`.
 *
 * <p>Each thread sends messages of its own sharding key, one after the other, or batches to its
 * own queue; MESSAGES and WARM are of all threads together.
 */
public final class Send {
    private Send() {}

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[2]);
        int batch = Integer.parseInt(args[3]);
        int messages = Integer.parseInt(args[4]) / threads;
        int warm = Integer.parseInt(args[5]) / threads;
        byte[] body = "x".repeat(Integer.parseInt(args[6])).getBytes(StandardCharsets.UTF_8);
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(args[1]);
        long[] started = new long[2];
        CyclicBarrier begin = new CyclicBarrier(threads, () -> {
            started[0] = System.nanoTime();
            started[1] = system.getProcessCpuTime();
        });
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            String key = "k" + number;
            MessageQueue queue = queues.get(number % queues.size());
            Thread thread = new Thread(() -> {
                try {
                    send(producer, args[1], key, queue, batch, warm, body);
                    begin.await();
                    send(producer, args[1], key, queue, batch, messages, body);
                } catch (Exception error) {
                    failure.set(error);
                    begin.reset();
                }
            });
            running.add(thread);
            thread.start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        double seconds = (System.nanoTime() - started[0]) / 1e9;
        double cpuSeconds = (system.getProcessCpuTime() - started[1]) / 1e9;
        producer.shutdown();
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.println("{\"peer\": \"Java client\", \"messages\": " + messages * threads
            + ", \"seconds\": " + seconds + ", \"cpu_seconds\": " + cpuSeconds
            + ", \"detail\": {\"java\": \"" + System.getProperty("java.version") + "\"}}");
        System.exit(0);
    }

    private static void send(
        DefaultMQProducer producer, String topic, String key, MessageQueue queue, int batch,
        int messages, byte[] body) throws Exception {
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        for (int sent = 0; sent < messages; sent += batch) {
            if (batch == 1) {
                check(producer.send(new Message(topic, body), selector, key));
                continue;
            }
            List<Message> together = new ArrayList<>(batch);
            for (int number = 0; number < batch; number++) {
                together.add(new Message(topic, body));
            }
            check(producer.send(together, queue));
        }
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }
}
