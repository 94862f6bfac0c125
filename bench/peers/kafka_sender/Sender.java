import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends at a rate; each value is the time at which it was sent, in ms since 1970. */
public class Sender {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int rate = Integer.parseInt(args[2]);
        int count = Integer.parseInt(args[3]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.partitionsFor(topic); // connects before the clock starts
            long begun = System.nanoTime();
            for (int i = 0; i < count; i++) {
                long due = begun + i * 1_000_000_000L / rate;
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
                }
                String now = Long.toString(System.currentTimeMillis());
                producer.send(new ProducerRecord<>(topic, "order-" + i % 100, now));
            }
        }
    }
}
