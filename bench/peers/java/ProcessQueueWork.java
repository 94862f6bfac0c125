import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** putMessage 32, takeMessages 32, commit, over a standing number of buffered messages. */
final class ProcessQueueWork {
    private static final byte[] BODY = new byte[100];
    private static final int BATCH = Peer.number("batch");
    private static final int COUNT = Peer.number("count");

    private ProcessQueueWork() {}

    static String run() {
        for (int depth : Peer.numbers("depths")) {
            ProcessQueue queue = new ProcessQueue();
            // Held, as the batches of every peer are: none is garbage while the clock runs.
            List<List<MessageExt>> held = new ArrayList<>(depth / BATCH);
            for (long first = 0; first < depth; first += BATCH) {
                held.add(batch(first));
                queue.putMessage(held.get(held.size() - 1));
            }
            long next = 0;
            for (long end = Peer.warmUntil(); System.nanoTime() < end; next += (long) COUNT * BATCH) {
                List<List<MessageExt>> more = batches(next + depth);
                chunk(queue, depth, next, more);
                held.addAll(more);
                held.subList(0, COUNT).clear(); // as many as the warm-up has committed
            }
            List<List<MessageExt>> ready = batches(next + depth);
            System.gc();
            long start = Peer.clock();
            long sum = chunk(queue, depth, next, ready);
            Peer.row("objects, depth " + depth, Peer.clock() - start, (long) COUNT * BATCH);
            long wanted = COUNT * next + (long) BATCH * COUNT * (COUNT + 1) / 2;
            Peer.check(sum == wanted && queue.getMsgCount().get() == depth, "commits " + sum);
            Peer.check(held.size() == depth / BATCH, "held " + held.size());
        }
        return "Java ProcessQueue";
    }

    private static long chunk(ProcessQueue queue, int depth, long next, List<List<MessageExt>> ready) {
        long sum = 0;
        int taken = 0;
        for (List<MessageExt> batch : ready) {
            queue.putMessage(batch);
            taken += queue.takeMessages(BATCH).size();
            sum += queue.commit();
        }
        Peer.check(taken == COUNT * BATCH, "taken " + taken);
        return sum;
    }

    private static List<List<MessageExt>> batches(long first) {
        List<List<MessageExt>> found = new ArrayList<>(COUNT);
        for (int i = 0; i < COUNT; i++) {
            found.add(batch(first + (long) i * BATCH));
        }
        return found;
    }

    private static List<MessageExt> batch(long first) {
        List<MessageExt> found = new ArrayList<>(BATCH);
        for (int i = 0; i < BATCH; i++) {
            MessageExt message = new MessageExt();
            message.setQueueOffset(first + i);
            message.setBody(BODY);
            found.add(message);
        }
        // As the pull API leaves it: putMessage reads it from the last message.
        MessageAccessor.putProperty(
            found.get(BATCH - 1), MessageConst.PROPERTY_MAX_OFFSET, Long.toString(first + BATCH));
        return found;
    }
}
