import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.broker.client.rebalance.RebalanceLockManager;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * tryLockBatch of locks the member holds, by batch and entries; groups of 1,024 queues. "equal"
 * asks with queues that are not the table's objects, of new strings; their hashes were taken when
 * the sets were made, as a broker that decodes them has done. "unlock and lock" frees and takes.
 */
final class LockTableWork {
    private static final String OWNER = "10.0.0.1@4711";

    private LockTableWork() {}

    static String run() {
        for (int entries : Peer.numbers("entries")) {
            int size = Math.min(entries, Peer.number("group"));
            int groupCount = entries / size;
            List<MessageQueue> queues = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                queues.add(new MessageQueue("OrderEvents", "broker-a", i));
            }
            RebalanceLockManager manager = new RebalanceLockManager();
            String[] groups = new String[groupCount];
            for (int i = 0; i < groupCount; i++) {
                groups[i] = "group-" + i;
                int got = manager.tryLockBatch(groups[i], new HashSet<>(queues), OWNER).size();
                Peer.check(got == size, "filled " + got);
            }
            for (int batch : Peer.numbers("batches")) {
                if (batch <= size) {
                    batch(manager, groups, queues, batch, entries);
                }
            }
        }
        return "Java RebalanceLockManager";
    }

    private static void batch(
            RebalanceLockManager manager, String[] groups, List<MessageQueue> queues, int batch,
            int entries) {
        int times = Peer.number("renewals") / batch;
        long items = (long) times * batch;
        String label = "batch " + batch + ", entries " + entries;
        List<Set<MessageQueue>> known = new ArrayList<>();
        for (int start = 0; start + batch <= queues.size(); start += batch) {
            known.add(new HashSet<>(queues.subList(start, start + batch)));
        }
        List<Set<MessageQueue>> same = new ArrayList<>();
        List<Set<MessageQueue>> equal = new ArrayList<>();
        for (int i = 0; i < times; i++) {
            Set<MessageQueue> wanted = known.get(i / groups.length % known.size());
            same.add(wanted);
            equal.add(copied(wanted));
        }
        warmed(label, items, () -> renew(manager, groups, same, items));
        warmed("equal, " + label, items, () -> renew(manager, groups, equal, items));
        warmed("unlock and lock, " + label, items, () -> free(manager, groups, same, items));
    }

    private static void warmed(String label, long items, Peer.Run run) {
        for (long end = Peer.warmUntil(); System.nanoTime() < end; ) {
            run.run();
        }
        Peer.rowOfFive(label, items, run);
    }

    private static Set<MessageQueue> copied(Set<MessageQueue> queues) {
        Set<MessageQueue> copy = new HashSet<>();
        for (MessageQueue queue : queues) {
            copy.add(new MessageQueue(new String(queue.getTopic().toCharArray()),
                new String(queue.getBrokerName().toCharArray()), queue.getQueueId()));
        }
        return copy;
    }

    private static void renew(
            RebalanceLockManager manager, String[] groups, List<Set<MessageQueue>> sets,
            long items) {
        long got = 0;
        for (int i = 0; i < sets.size(); i++) {
            got += manager.tryLockBatch(groups[i % groups.length], sets.get(i), OWNER).size();
        }
        Peer.check(got == items, "renewed " + got);
    }

    private static void free(
            RebalanceLockManager manager, String[] groups, List<Set<MessageQueue>> sets,
            long items) {
        long got = 0;
        for (int i = 0; i < sets.size(); i++) {
            manager.unlockBatch(groups[i % groups.length], sets.get(i), OWNER);
            got += manager.tryLockBatch(groups[i % groups.length], sets.get(i), OWNER).size();
        }
        Peer.check(got == items, "locked " + got);
    }
}
