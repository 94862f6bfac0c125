import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Java's client from send to listener: `java Latency NAME_SERVER TOPIC GROUP RATE KEYS MESSAGES
 * WARM BODY_BYTES`; the same as bench/end_to_end/ordermq_latency.py.
 */
public final class Latency {
    private Latency() {}

    public static void main(String[] args) throws Exception {
        int keys = Integer.parseInt(args[4]);
        int messages = Integer.parseInt(args[5]);
        int warm = Integer.parseInt(args[6]);
        long periodNs = 1_000_000_000L * keys / Integer.parseInt(args[3]);
        ConcurrentLinkedQueue<Long> taken = new ConcurrentLinkedQueue<>();
        CountDownLatch ready = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(1);
        AtomicInteger heard = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
            long now = System.nanoTime();
            if (batch.get(0).getBody().length < Long.BYTES) {
                ready.countDown(); // what made the topic
                return ConsumeOrderlyStatus.SUCCESS;
            }
            taken.add(now - ByteBuffer.wrap(batch.get(0).getBody()).getLong());
            if (heard.incrementAndGet() == warm + messages) {
                done.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        if (!ready.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not one message within 60 s");
        }
        Thread.sleep(2_000); // the other queues, too, are locked and pulled
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long begin = System.nanoTime() + 100_000_000L;
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> senders = new ArrayList<>();
        for (int number = 0; number < keys; number++) {
            String key = "k" + number;
            long first = begin + number * periodNs / keys;
            int count = (warm + messages) / keys;
            Thread sender = new Thread(() -> {
                try {
                    SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
                    for (int sent = 0; sent < count; sent++) {
                        long due = first + sent * periodNs;
                        sleepUntil(due);
                        ByteBuffer body = ByteBuffer.allocate(Integer.parseInt(args[7]));
                        body.putLong(0, due); // not now: a late send counts its wait
                        producer.send(new Message(args[1], body.array()), selector, key);
                    }
                } catch (Exception error) {
                    failure.set(error);
                    done.countDown();
                }
            });
            senders.add(sender);
            sender.start();
        }
        sleepUntil(begin + warm / keys * periodNs);
        long startedNs = System.nanoTime();
        long startedCpu = system.getProcessCpuTime();
        boolean isComplete = done.await(120, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - startedNs) / 1e9;
        double cpuSeconds = (system.getProcessCpuTime() - startedCpu) / 1e9;
        if (failure.get() != null) {
            throw failure.get();
        }
        if (!isComplete) {
            throw new IllegalStateException("only " + heard + " messages came");
        }
        for (Thread sender : senders) {
            sender.join();
        }
        producer.shutdown();
        consumer.shutdown();
        StringJoiner latencies = new StringJoiner(",");
        taken.stream().skip(warm).forEach(ns -> latencies.add(String.valueOf(ns / 1_000)));
        System.out.println("{\"peer\": \"Java client\", \"messages\": " + messages
            + ", \"seconds\": " + seconds + ", \"cpu_seconds\": " + cpuSeconds
            + ", \"latencies_us\": [" + latencies
            + "], \"detail\": {\"java\": \"" + System.getProperty("java.version") + "\"}}");
        System.exit(0);
    }

    private static void sleepUntil(long whenNs) {
        for (long left = whenNs - System.nanoTime(); left > 0; left = whenNs - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
