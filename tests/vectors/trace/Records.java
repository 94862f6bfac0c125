import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageType;

/**
 * Trace records as Java writes them, hexadecimal, one line each: records.hex was written by
 *
 * <pre>
 * java -Drmq.logback.configurationFile=tests/interop/java/rmq.logback.xml \
 *     -cp "$(ci/rocketmq.sh jars 5.3.3)" tests/vectors/trace/Records.java
 * </pre>
 *
 */
public class Records {
    public static void main(String[] args) {
        TraceContext pub = context(TraceType.Pub, bean("id-1", "paid", "o-17 all"));
        pub.getTraceBeans().get(0).setMsgType(MessageType.Normal_Msg);
        print(pub);
        TraceContext bare = context(TraceType.Pub, bean("id-2", null, null));
        bare.getTraceBeans().get(0).setMsgType(MessageType.Delay_Msg);
        bare.getTraceBeans().get(0).setOffsetMsgId(null);
        bare.setSuccess(false);
        print(bare);
        print(context(TraceType.SubBefore, bean("id-1", "paid", "o-17"), bean("id-2", null, null)));
        TraceContext after = context(TraceType.SubAfter, bean("id-1", "paid", "订单"));
        after.setContextCode(4);
        after.setSuccess(false);
        print(after);
    }

    private static TraceContext context(TraceType type, TraceBean... beans) {
        TraceContext context = new TraceContext();
        context.setTraceType(type);
        context.setTimeStamp(1_700_000_000_000L);
        context.setRegionId("DefaultRegion");
        context.setGroupName("g");
        context.setRequestId("request-1");
        context.setCostTime(12);
        context.setAccessChannel(AccessChannel.LOCAL);
        context.setTraceBeans(Arrays.asList(beans));
        return context;
    }

    private static TraceBean bean(String id, String tags, String keys) {
        TraceBean bean = new TraceBean();
        bean.setTopic("orders");
        bean.setMsgId(id);
        bean.setTags(tags);
        bean.setKeys(keys);
        bean.setStoreHost("10.0.0.1:10911");
        bean.setBodyLength(5);
        bean.setRetryTimes(2);
        bean.setOffsetMsgId("0A000001");
        return bean;
    }

    private static void print(TraceContext context) {
        String text = TraceDataEncoder.encoderFromContextBean(context).getTransData();
        List<TraceContext> read = TraceDataEncoder.decoderFromTraceDataString(text);
        if (read.isEmpty()) {
            throw new AssertionError(text);
        }
        StringBuilder hex = new StringBuilder();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            hex.append(String.format("%02x", each));
        }
        System.out.println(hex);
    }
}
