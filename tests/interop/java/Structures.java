import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Scanner;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.broker.client.rebalance.RebalanceLockManager;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own ProcessQueue and RebalanceLockManager, driven line by line; each line is answered.
 *
 * <p>new | put OFFSET:BYTES,.. | take N | commit | rollback | again OFFSET,.. | remove OFFSET,..
 * | locks | lock GROUP OWNER ID,.. | unlock GROUP OWNER ID,.. | later MS
 */
final class Structures {
    private static ProcessQueue queue = new ProcessQueue();
    private static RebalanceLockManager locks = new RebalanceLockManager();

    private Structures() {}

    public static void main(String[] args) throws Exception {
        Lines.print("ready", true);
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            Object result = answer(words);
            Lines.print(
                "result", result,
                "count", queue.getMsgCount().get(),
                "bytes", queue.getMsgSize().get(),
                "span", queue.getMaxSpan());
        }
    }

    private static Object answer(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                queue = new ProcessQueue();
                return true;
            case "put":
                return queue.putMessage(messages(words[1]));
            case "take":
                List<Long> taken = new ArrayList<>();
                for (MessageExt each : queue.takeMessages(Integer.parseInt(words[1]))) {
                    taken.add(each.getQueueOffset());
                }
                return taken;
            case "commit":
                try {
                    return queue.commit();
                } catch (NoSuchElementException nothingIsConsuming) {
                    return -1;
                }
            case "rollback":
                queue.rollback();
                return true;
            case "again":
                queue.makeMessageToConsumeAgain(messages(words[1]));
                return true;
            case "remove":
                return queue.removeMessage(messages(words[1]));
            case "locks":
                locks = new RebalanceLockManager();
                return true;
            case "lock":
                Set<Integer> granted = new TreeSet<>();
                for (MessageQueue each : locks.tryLockBatch(words[1], queues(words[3]), words[2])) {
                    granted.add(each.getQueueId());
                }
                return granted;
            case "unlock":
                locks.unlockBatch(words[1], queues(words[3]), words[2]);
                return true;
            case "later":
                age(Long.parseLong(words[1]));
                return true;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Messages of "offset:bytes,offset:bytes"; the bytes may be left out. */
    private static List<MessageExt> messages(String text) {
        List<MessageExt> found = new ArrayList<>();
        for (String each : text.split(",")) {
            String[] parts = each.split(":");
            MessageExt message = new MessageExt();
            message.setQueueOffset(Long.parseLong(parts[0]));
            message.setBody(new byte[parts.length > 1 ? Integer.parseInt(parts[1]) : 0]);
            found.add(message);
        }
        return found;
    }

    private static Set<MessageQueue> queues(String ids) {
        Set<MessageQueue> found = new HashSet<>();
        for (String id : ids.split(",")) {
            found.add(new MessageQueue("orders", "broker-a", Integer.parseInt(id)));
        }
        return found;
    }

    /** Let time pass: the class reads the wall clock, so every lock is dated back instead. */
    private static void age(long ms) throws Exception {
        Field table = RebalanceLockManager.class.getDeclaredField("mqLockTable");
        table.setAccessible(true);
        for (Object group : ((Map<?, ?>) table.get(locks)).values()) {
            for (Object entry : ((Map<?, ?>) group).values()) {
                Field stamp = entry.getClass().getDeclaredField("lastUpdateTimestamp");
                stamp.setAccessible(true);
                stamp.setLong(entry, stamp.getLong(entry) - ms);
            }
        }
    }
}
