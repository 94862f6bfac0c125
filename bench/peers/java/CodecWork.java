import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** MessageDecoder.decodes of whole pull bodies, then body, tags and keys of each message. */
final class CodecWork {
    private CodecWork() {}

    static String run() throws Exception {
        int[] messages = Peer.numbers("messages");
        String[] files = Peer.setting("files").split(",");
        String[] labels = Peer.setting("labels").split(",");
        for (int i = 0; i < files.length; i++) {
            byte[] body = Files.readAllBytes(Path.of(files[i]));
            int times = Math.max(1, Peer.number("timed") / messages[i]);
            for (long end = Peer.warmUntil(); System.nanoTime() < end; ) {
                decode(body, times, messages[i]);
            }
            int count = messages[i];
            Peer.rowOfFive(labels[i], (long) times * count, () -> decode(body, times, count));
        }
        return "Java MessageDecoder";
    }

    private static void decode(byte[] body, int times, int messages) {
        long offsets = 0;
        long seen = 0;
        for (int i = 0; i < times; i++) {
            List<MessageExt> found = MessageDecoder.decodes(ByteBuffer.wrap(body));
            for (MessageExt message : found) {
                offsets += message.getQueueOffset();
                seen += message.getBody().length > 0 && message.getTags() != null
                    && message.getKeys() != null ? 1 : 0;
            }
        }
        Peer.check(seen == (long) times * messages, "decoded " + seen);
        Peer.check(offsets == (long) times * messages * (messages - 1) / 2, "offsets " + offsets);
    }
}
