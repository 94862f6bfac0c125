import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * A Java member's events, as ordermq/events.py describes them, for the same audit.
 *
 * <p>Locks, unlocks and commits are seen on the wire, as a hook of the client's remoting. A
 * commit of Java's is one-way: it is told as sent and never as acknowledged.
 */
final class History implements RPCHook {
    private static final int UPDATE_CONSUMER_OFFSET = 15;
    private static final int LOCK = 41;
    private static final int UNLOCK = 42;
    private static final long LEASE_MS = // after which this client trusts its lock no more
        Long.getLong("rocketmq.client.rebalance.lockMaxLiveTime", 30_000);

    private final FileOutputStream file;
    private final String process;
    private final String group;
    private final long toBootTime; // System.nanoTime() counts on another clock than the audit
    private final Map<MessageQueue, Long> epochs = new HashMap<>();
    private final Map<MessageQueue, Long> grants = new HashMap<>();
    private final Map<Integer, Long> asked = new HashMap<>();
    private long sequence;

    History(String path, String process, String group, long toBootTime) throws IOException {
        this.file = new FileOutputStream(path, true);
        this.process = process;
        this.group = group;
        this.toBootTime = toBootTime;
        write("OPEN", now(), null);
    }

    long now() {
        return System.nanoTime() + toBootTime;
    }

    void start(MessageQueue queue, List<MessageExt> messages) {
        int attempt = messages.get(0).getReconsumeTimes();
        batch("START", queue, messages, "attempt", attempt);
    }

    void end(MessageQueue queue, List<MessageExt> messages, int done) {
        batch("END", queue, messages, "done", done);
    }

    synchronized void close() throws IOException {
        write("CLOSE", now(), null);
        file.close();
    }

    @Override
    public synchronized void doBeforeRequest(String address, RemotingCommand request) {
        if (request.getCode() == LOCK) {
            asked.put(request.getOpaque(), now());
        } else if (request.getCode() == UNLOCK) {
            for (MessageQueue queue : queues(request)) {
                write("UNLOCK", now(), queue);
                epochs.remove(queue);
            }
        } else if (request.getCode() == UPDATE_CONSUMER_OFFSET) {
            request.makeCustomHeaderToNet();
            Map<String, String> fields = request.getExtFields();
            for (MessageQueue queue : epochs.keySet()) {
                if (queue.getTopic().equals(fields.get("topic"))
                    && queue.getQueueId() == Integer.parseInt(fields.get("queueId"))
                    && queue.getBrokerName().equals(brokerOf(fields, queue))) {
                    write("COMMIT_SENT", now(), queue, "off",
                        Long.parseLong(fields.get("commitOffset")));
                }
            }
        }
    }

    @Override
    public synchronized void doAfterResponse(
        String address, RemotingCommand request, RemotingCommand response) {
        if (request.getCode() != LOCK) {
            return;
        }
        Long sent = asked.remove(request.getOpaque());
        if (sent == null || response == null || response.getCode() != 0) {
            return;
        }
        for (MessageQueue queue : queues(response)) {
            Long before = grants.put(queue, sent);
            if (before == null || sent - before > LEASE_MS * 1_000_000) {
                epochs.remove(queue); // somebody else may have had it meanwhile
            }
            // Java stores none; between those of ordermq's members the wall clock fits.
            epochs.putIfAbsent(queue, System.currentTimeMillis());
            write("LOCK_OK", now(), queue, "sent", sent, "lease_ms", LEASE_MS);
        }
    }

    private static String brokerOf(Map<String, String> fields, MessageQueue queue) {
        String told = fields.get("bname"); // since 5.0; before, one broker a topic is all we know
        return told == null ? queue.getBrokerName() : told;
    }

    private static List<MessageQueue> queues(RemotingCommand command) {
        List<MessageQueue> found = new ArrayList<>();
        String body = new String(command.getBody(), StandardCharsets.UTF_8);
        for (Map<String, String> queue : Lines.objects(body)) {
            found.add(new MessageQueue(queue.get("topic"), queue.get("brokerName"),
                Integer.parseInt(queue.get("queueId"))));
        }
        return found;
    }

    private synchronized void batch(
        String type, MessageQueue queue, List<MessageExt> messages, Object... members) {
        List<Object> offsets = new ArrayList<>();
        List<Object> keys = new ArrayList<>();
        for (MessageExt message : messages) {
            offsets.add(message.getQueueOffset());
            keys.add(message.getProperty("__SHARDINGKEY"));
        }
        List<Object> all = new ArrayList<>(Arrays.asList("offs", offsets, "keys", keys));
        all.addAll(Arrays.asList(members));
        write(type, now(), queue, all.toArray());
    }

    private synchronized void write(String type, long t, MessageQueue queue, Object... members) {
        List<Object> all = new ArrayList<>(
            Arrays.asList("p", process, "seq", sequence++, "t", t, "type", type));
        if (queue != null) {
            all.addAll(Arrays.asList("group", group, "topic", queue.getTopic(), "broker",
                queue.getBrokerName(), "queue", queue.getQueueId(), "epoch",
                epochs.getOrDefault(queue, 0L)));
        }
        all.addAll(Arrays.asList(members));
        try {
            file.write((Lines.object(all.toArray()) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
