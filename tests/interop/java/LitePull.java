import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer that does what each input line says, and answers with one line.
 * A queue is written topic@broker/id. Lines: poll COUNT TIMEOUT_MS; assign QUEUE...; assignment;
 * seek QUEUE OFFSET; begin QUEUE; end QUEUE; time QUEUE MS; committed QUEUE; queues TOPIC;
 * commit; commit QUEUE=OFFSET...
 */
final class LitePull {
    private final DefaultLitePullConsumer consumer;

    private LitePull(DefaultLitePullConsumer consumer) {
        this.consumer = consumer;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = Lines.arguments(args);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(given.get("group"));
        consumer.setInstanceName("java-" + ProcessHandle.current().pid());
        consumer.setNamesrvAddr(given.get("name_servers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (given.containsKey("topic")) {
            consumer.subscribe(given.get("topic"), given.getOrDefault("tags", "*"));
        }
        consumer.start();
        Lines.print("ready", consumer.buildMQClientId());
        LitePull program = new LitePull(consumer);
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                Lines.print("answer", program.answer(line.split(" ")));
            } catch (Exception error) {
                Lines.print("error", error.toString());
            }
        }
        consumer.shutdown();
        System.exit(0); // the client leaves threads behind
    }

    private Object answer(String[] words) throws Exception {
        boolean isAboutQueue = words.length > 1 && words[1].matches(".*@.*/\\d+");
        MessageQueue queue = isAboutQueue ? queue(words[1]) : null;
        switch (words[0]) {
            case "poll":
                return polled(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (int i = 1; i < words.length; i++) {
                    queues.add(queue(words[i]));
                }
                consumer.assign(queues);
                return true;
            case "assignment":
                return names(consumer.assignment());
            case "seek":
                consumer.seek(queue, Long.parseLong(words[2]));
                return true;
            case "begin":
                consumer.seekToBegin(queue);
                return true;
            case "end":
                consumer.seekToEnd(queue);
                return true;
            case "time":
                return consumer.offsetForTimestamp(queue, Long.parseLong(words[2]));
            case "committed":
                return consumer.committed(queue);
            case "queues":
                return names(consumer.fetchMessageQueues(words[1]));
            case "commit":
                commit(words);
                return true;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void commit(String[] words) throws Exception {
        if (words.length == 1) {
            consumer.commit(new HashSet<>(consumer.assignment()), true);
            return;
        }
        Map<MessageQueue, Long> offsets = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            offsets.put(queue(words[i].substring(0, at)), Long.valueOf(words[i].substring(at + 1)));
        }
        consumer.commitSync(offsets, true);
    }

    /** Messages as "queue offset body", until there are so many or none comes in time. */
    private List<String> polled(int count, long timeoutMs) {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + timeoutMs * 1_000_000;
        while (found.size() < count && System.nanoTime() < end) {
            for (MessageExt message : consumer.poll(100)) {
                found.add(name(message.getTopic(), message.getBrokerName(), message.getQueueId())
                    + " " + message.getQueueOffset() + " "
                    + new String(message.getBody(), StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    private static List<String> names(Collection<MessageQueue> queues) {
        List<String> names = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(queues)) {
            names.add(name(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
        }
        return names;
    }

    private static String name(String topic, String broker, int queueId) {
        return topic + "@" + broker + "/" + queueId;
    }

    private static MessageQueue queue(String name) {
        int at = name.indexOf('@');
        int slash = name.lastIndexOf('/');
        return new MessageQueue(name.substring(0, at), name.substring(at + 1, slash),
            Integer.parseInt(name.substring(slash + 1)));
    }
}
