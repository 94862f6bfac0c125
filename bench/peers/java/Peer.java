import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;

/** A Java peer: `java Peer WORK name=value...`, one JSON line out (bench/peers/README.md). */
public final class Peer {
    private static final Map<String, String> SETTINGS = new HashMap<>();
    private static final Map<String, Double> ROWS = new LinkedHashMap<>();

    private Peer() {}

    public static void main(String[] args) throws Exception {
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            SETTINGS.put(pair[0], pair[1]);
        }
        String name = run(args[0]);
        if (!args[0].equals("offset_map")) { // which has sixteen cases to warm up on
            run(args[0]); // the first was for the JIT, over every case; this one is kept
        }
        StringJoiner rows = new StringJoiner(", ");
        ROWS.forEach((label, value) -> rows.add("\"" + label + "\": " + value));
        System.out.println("{\"peer\": \"" + name + "\", \"work\": \"" + args[0]
            + "\", \"detail\": {\"java\": \"" + System.getProperty("java.version")
            + "\", \"rocketmq\": \"" + SETTINGS.get("version") + "\"}, \"rows\": {" + rows + "}}");
    }

    private static String run(String work) throws Exception {
        return switch (work) {
            case "process_queue" -> ProcessQueueWork.run();
            case "lock_table" -> LockTableWork.run();
            case "codec" -> CodecWork.run();
            case "offset_map" -> TreeMapWork.run();
            default -> throw new IllegalArgumentException(work);
        };
    }

    static String setting(String name) {
        return SETTINGS.get(name);
    }

    static int number(String name) {
        return Integer.parseInt(SETTINGS.get(name));
    }

    static int[] numbers(String name) {
        String[] parts = SETTINGS.get(name).split(",");
        int[] found = new int[parts.length];
        for (int i = 0; i < parts.length; i++) {
            found[i] = Integer.parseInt(parts[i]);
        }
        return found;
    }

    static void row(String label, long nanoseconds, long items) {
        ROWS.put(label, (double) nanoseconds / items);
    }

    interface Run {
        void run();
    }

    /** The median of five runs. */
    static void rowOfFive(String label, long items, Run run) {
        System.gc();
        long[] spent = new long[5];
        for (int i = 0; i < spent.length; i++) {
            long start = clock();
            run.run();
            spent[i] = clock() - start;
        }
        Arrays.sort(spent);
        row(label, spent[2], items);
    }

    /** Nanoseconds of this thread's processor time, which garbage collection is not part of. */
    static long clock() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    static long warmUntil() {
        return System.nanoTime() + number("warm_ms") * 1_000_000L;
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException("the result that was timed is wrong: " + what);
        }
    }
}
