import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.broker.client.rebalance.RebalanceLockManager;
import org.apache.rocketmq.common.message.MessageQueue;

/** tryLockBatch of locks the member holds, by batch and entries; groups of 1,024 queues. */
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
                if (batch > size) {
                    continue;
                }
                List<Set<MessageQueue>> sets = new ArrayList<>();
                for (int start = 0; start + batch <= size; start += batch) {
                    sets.add(new HashSet<>(queues.subList(start, start + batch)));
                }
                int times = Peer.number("renewals") / batch;
                for (long end = Peer.warmUntil(); System.nanoTime() < end; ) {
                    renew(manager, groups, sets, times, batch);
                }
                Peer.rowOfFive("batch " + batch + ", entries " + entries, (long) times * batch,
                    () -> renew(manager, groups, sets, times, batch));
            }
        }
        return "Java RebalanceLockManager";
    }

    private static void renew(
            RebalanceLockManager manager, String[] groups, List<Set<MessageQueue>> sets, int times,
            int batch) {
        long got = 0;
        for (int i = 0; i < times; i++) {
            Set<MessageQueue> wanted = sets.get(i / groups.length % sets.size());
            got += manager.tryLockBatch(groups[i % groups.length], wanted, OWNER).size();
        }
        Peer.check(got == (long) times * batch, "renewed " + got);
    }
}
