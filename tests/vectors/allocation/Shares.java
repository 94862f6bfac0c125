import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What Java's own allocation strategies answer, one JSON case a line: shares.jsonl was written by
 *
 * <pre>
 * java -Drmq.logback.configurationFile=tests/interop/java/rmq.logback.xml \
 *     -cp "$(ci/rocketmq.sh jars 5.3.3)" tests/vectors/allocation/Shares.java
 * </pre>
 *
 * The rooms of brokers and members are what stands before the '@' of their names.
 */
public class Shares {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] args) {
        for (int queues : new int[] {1, 2, 7, 8, 16, 33}) {
            for (int members : new int[] {1, 2, 3, 4, 10}) {
                List<MessageQueue> all = queues(queues, "broker-a", "broker-b");
                List<String> ids = members(members, "10.0.0.");
                print("avg", "", all, ids, new AllocateMessageQueueAveragely());
                print("avg_by_circle", "", all, ids, new AllocateMessageQueueAveragelyByCircle());
                print("consistent_hash", "", all, ids, new AllocateMessageQueueConsistentHash());
            }
        }
        print("consistent_hash", "", queues(40, "b\u00e9", "\u8ba2"), members(3, "\u5355-"),
            new AllocateMessageQueueConsistentHash());
        AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
        byConfig.setMessageQueueList(queues(3, "broker-a"));
        print("config", "", queues(8, "broker-a", "broker-b"), members(2, "m"), byConfig);
        machineRooms();
        for (String ids : new String[] {"r1", "r2", "r1 r2", "r1 r3", "r1 r2 r3"}) {
            for (String brokers : new String[] {"r1", "r1 r2", "r2 r3", "r1 r2 r3"}) {
                nearby(brokers.split(" "), ids.split(" "));
            }
        }
    }

    private static void machineRooms() {
        for (String rooms : new String[] {"r1", "r1 r3", "r1 r2 r3", "r9"}) {
            AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
            strategy.setConsumeridcs(new TreeSet<>(Arrays.asList(rooms.split(" "))));
            for (int members : new int[] {1, 2, 3, 5}) {
                // Names without a room, with too many, and with an empty part at the end.
                List<MessageQueue> all = queues(30, "r1@a", "r2@b", "r3@c", "plain", "r1@x@y", "r1@z@", "r1@");
                print("machine_room", rooms, all, members(members, "m"), strategy);
            }
        }
    }

    private static void nearby(String[] brokerRooms, String[] memberRooms) {
        String[] brokers = Arrays.stream(brokerRooms).map(r -> r + "@b").toArray(String[]::new);
        List<String> ids = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            ids.add(memberRooms[i % memberRooms.length] + "@m" + i);
        }
        Collections.sort(ids);
        AllocateMachineRoomNearby.MachineRoomResolver rooms = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            @Override
            public String consumerDeployIn(String id) {
                return id.split("@")[0];
            }
        };
        Map<String, AllocateMessageQueueStrategy> inner = new LinkedHashMap<>();
        inner.put("avg", new AllocateMessageQueueAveragely());
        inner.put("avg_by_circle", new AllocateMessageQueueAveragelyByCircle());
        inner.put("consistent_hash", new AllocateMessageQueueConsistentHash());
        inner.forEach((name, strategy) -> print("machine_room_nearby", name, queues(11, brokers), ids,
            new AllocateMachineRoomNearby(strategy, rooms)));
    }

    /** `count` queues dealt to the brokers, sorted as a rebalance has them. */
    private static List<MessageQueue> queues(int count, String... brokers) {
        List<MessageQueue> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(new MessageQueue("T", brokers[i % brokers.length], i / brokers.length));
        }
        Collections.sort(all);
        return all;
    }

    private static List<String> members(int count, String prefix) {
        List<String> ids = new ArrayList<>();
        for (int i = 1; i <= count; i++) {
            ids.add(prefix + i + "@" + (char) ('a' + i - 1));
        }
        Collections.sort(ids);
        return ids;
    }

    private static void print(String name, String told, List<MessageQueue> all, List<String> ids,
        AllocateMessageQueueStrategy strategy) {
        List<String> shares = new ArrayList<>();
        for (String id : ids) {
            shares.add(strategy.allocate("G", id, all, ids).stream()
                .map(queue -> String.valueOf(all.indexOf(queue))).collect(Collectors.joining(",", "[", "]")));
        }
        OUT.println("{\"strategy\":\"" + name + "\",\"told\":\"" + told + "\",\"queues\":"
            + all.stream().map(q -> "[\"" + q.getBrokerName() + "\"," + q.getQueueId() + "]")
                .collect(Collectors.joining(",", "[", "]"))
            + ",\"members\":" + ids.stream().map(id -> "\"" + id + "\"").collect(Collectors.joining(",", "[", "]"))
            + ",\"shares\":[" + String.join(",", shares) + "]}");
    }
}
