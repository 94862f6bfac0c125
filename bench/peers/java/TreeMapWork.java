import java.util.Random;
import java.util.TreeMap;

/** java.util.TreeMap doing what bench/core/offset_work.py says. */
final class TreeMapWork {
    private static final int PAIRS = Peer.number("pairs");

    private TreeMapWork() {}

    static String run() {
        for (String order : new String[] {"ascending", "disorder", "random", "sparse"}) {
            for (int size : Peer.numbers("sizes")) {
                Random random = new Random(Peer.number("seed") + size);
                boolean shifting = order.equals("ascending") || order.equals("disorder");
                long[] keys = new long[2 * size];
                for (int i = 0; i < keys.length; i++) {
                    keys[i] = order.equals("sparse") ? random.nextLong() >>> 16 : i;
                }
                if (!shifting) {
                    shuffle(keys, 0, keys.length, random);
                }
                TreeMap<Long, Long> map = new TreeMap<>();
                for (int i = 0; i < size; i++) {
                    map.put(keys[i], keys[i]);
                }
                int standing = map.size();
                long[] come = new long[PAIRS];
                long[] go = new long[PAIRS];
                long next = size;
                long end = Peer.warmUntil();
                long spent = 0;
                boolean last = false;
                while (!last) {
                    last = System.nanoTime() > end;
                    if (shifting) {
                        next = plan(come, next, order.equals("disorder") ? Peer.number("width") : 1, random);
                    } else {
                        plan(come, go, keys, size, random);
                    }
                    if (last) {
                        System.gc();
                    }
                    long start = Peer.clock();
                    if (shifting) {
                        popFirst(map, come);
                    } else {
                        remove(map, come, go);
                    }
                    spent = Peer.clock() - start;
                }
                Peer.row(order + ", size " + size, spent, PAIRS);
                Peer.check(map.size() == standing, "size " + map.size());
                Peer.check(!shifting || map.firstKey() == next - size, "first " + map.firstKey());
                for (int i = 0; i < size && !shifting; i++) {
                    Peer.check(map.containsKey(keys[i]), "key " + keys[i]);
                }
            }
        }
        return "Java TreeMap";
    }

    private static void popFirst(TreeMap<Long, Long> map, long[] come) {
        long sum = 0;
        for (long key : come) {
            map.put(key, key);
            sum += map.pollFirstEntry().getKey();
        }
        Peer.check(sum > 0, "sum " + sum);
    }

    private static void remove(TreeMap<Long, Long> map, long[] come, long[] go) {
        for (int i = 0; i < come.length; i++) {
            map.put(come[i], come[i]);
            Peer.check(map.remove(go[i]) != null, "removed " + go[i]);
        }
    }

    private static long plan(long[] come, long next, int width, Random random) {
        for (int i = 0; i < come.length; i++) {
            come[i] = next++;
        }
        for (int start = 0; start < come.length; start += width) {
            shuffle(come, start, Math.min(start + width, come.length), random);
        }
        return next;
    }

    private static void plan(long[] come, long[] go, long[] keys, int size, Random random) {
        for (int i = 0; i < come.length; i++) {
            int out = random.nextInt(size);
            int into = size + random.nextInt(size);
            come[i] = keys[into];
            go[i] = keys[out];
            keys[into] = go[i];
            keys[out] = come[i];
        }
    }

    private static void shuffle(long[] keys, int from, int to, Random random) {
        for (int i = to - 1; i > from; i--) {
            int other = from + random.nextInt(i - from + 1);
            long key = keys[i];
            keys[i] = keys[other];
            keys[other] = key;
        }
    }
}
