import apache.rocketmq.v2.Code;
import apache.rocketmq.v2.Encoding;
import apache.rocketmq.v2.Message;
import apache.rocketmq.v2.MessageType;
import apache.rocketmq.v2.MessagingServiceGrpc;
import apache.rocketmq.v2.Resource;
import apache.rocketmq.v2.SendMessageRequest;
import apache.rocketmq.v2.SendMessageResponse;
import apache.rocketmq.v2.SystemProperties;
import com.google.protobuf.ByteString;
import com.google.protobuf.util.Timestamps;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.handler.ssl.util.InsecureTrustManagerFactory;
import io.grpc.stub.MetadataUtils;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;

/**
 * Sends one message for each message group to a proxy, as clients of RocketMQ 5 do:
 * GrpcSender PORT TOPIC, with a group per line of its input. The body is the group. Run from source.
 */
final class GrpcSender {
    public static void main(String[] args) throws Exception {
        ManagedChannel channel =
                NettyChannelBuilder.forAddress("127.0.0.1", Integer.parseInt(args[0]))
                        .sslContext(GrpcSslContexts.forClient()
                                .trustManager(InsecureTrustManagerFactory.INSTANCE)
                                .build())
                        .build();
        Metadata headers = new Metadata();
        String[][] named = {
            {"x-mq-client-id", "interop-" + UUID.randomUUID()},
            {"x-mq-language", "JAVA"},
            {"x-mq-protocol", "v2"},
            {"x-mq-client-version", "5.0.7"},
            {"x-mq-namespace", ""},
        };
        for (String[] each : named) {
            headers.put(Metadata.Key.of(each[0], Metadata.ASCII_STRING_MARSHALLER), each[1]);
        }
        MessagingServiceGrpc.MessagingServiceBlockingStub proxy =
                MessagingServiceGrpc.newBlockingStub(channel)
                        .withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
        List<String> groups =
                new String(System.in.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
        for (int i = 0; i < groups.size(); i++) {
            String group = groups.get(i);
            SystemProperties properties = SystemProperties.newBuilder()
                    .setMessageId(String.format("01%032X", i))
                    .setMessageType(MessageType.FIFO)
                    .setMessageGroup(group)
                    .setBodyEncoding(Encoding.IDENTITY)
                    .setBornTimestamp(Timestamps.fromMillis(System.currentTimeMillis()))
                    .setBornHost("127.0.0.1")
                    .build();
            Message message = Message.newBuilder()
                    .setTopic(Resource.newBuilder().setName(args[1]))
                    .setSystemProperties(properties)
                    .setBody(ByteString.copyFromUtf8(group))
                    .build();
            SendMessageResponse answer =
                    proxy.sendMessage(SendMessageRequest.newBuilder().addMessages(message).build());
            if (answer.getStatus().getCode() != Code.OK) {
                throw new IllegalStateException(answer.toString());
            }
        }
        channel.shutdownNow();
    }
}
