"""Messages of the service `apache.rocketmq.v2.MessagingService`, by RocketMQ's names
(docs/internals/protocol.md#grpc).

Fields and messages that this client neither sends nor reads are left out. The numbers are those of
the public definition in apache/rocketmq-apis.
"""

from __future__ import annotations

from enum import IntEnum

from ordermq.grpc.protobuf import ProtoMessage, numbered, text_field

SERVICE = "/apache.rocketmq.v2.MessagingService/"


class Code(IntEnum):
    """Codes of a `Status` that this client acts on."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_POLLING_TIME = 40018
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_TYPE_CONFLICT = 40014  # MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    REQUEST_TIMEOUT = 40800
    MESSAGE_BODY_TOO_LARGE = 41301
    TOO_MANY_REQUESTS = 42900
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500


class ClientType(IntEnum):
    PRODUCER = 1
    PUSH_CONSUMER = 2


class MessageType(IntEnum):
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4


class Permission(IntEnum):
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    TAG = 1
    SQL = 2


class BodyEncoding(IntEnum):
    IDENTITY = 1
    GZIP = 2


class Resolution(IntEnum):
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    CLIENT = 1
    SERVER_CHECK = 2


class AddressScheme(IntEnum):
    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


PYTHON = 6  # of the enumeration Language


class Timestamp(ProtoMessage):
    seconds: int = numbered(1, default=0)
    nanos: int = numbered(2, default=0)

    @classmethod
    def of_ms(cls, ms: int) -> Timestamp:
        return cls(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)

    @property
    def ms(self) -> int:
        """Milliseconds since 1970."""
        return self.seconds * 1_000 + self.nanos // 1_000_000


class Duration(ProtoMessage):
    seconds: int = numbered(1, default=0)
    nanos: int = numbered(2, default=0)

    @classmethod
    def of_ms(cls, ms: int) -> Duration:
        return cls(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)

    @property
    def ms(self) -> int:
        return self.seconds * 1_000 + self.nanos // 1_000_000


class Status(ProtoMessage):
    code: int = numbered(1, default=0)
    message: str = numbered(2, default="")


class Resource(ProtoMessage):
    """A topic or a group."""

    namespace: str = numbered(1, default="")
    name: str = numbered(2, default="")


class Address(ProtoMessage):
    host: str = numbered(1, default="")
    port: int = numbered(2, default=0)


class Endpoints(ProtoMessage):
    scheme: int = numbered(1, default=0)
    addresses: list[Address] = numbered(2, default_factory=list)


class Broker(ProtoMessage):
    name: str = numbered(1, default="")
    id: int = numbered(2, default=0)
    endpoints: Endpoints | None = numbered(3, default=None)


class Queue(ProtoMessage):
    """A `MessageQueue` of the definition."""

    topic: Resource | None = numbered(1, default=None)
    id: int = numbered(2, default=0)
    permission: int = numbered(3, default=0)
    broker: Broker | None = numbered(4, default=None)
    accept_message_types: list[int] = numbered(5, default_factory=list)


class FilterExpression(ProtoMessage):
    type: int = numbered(1, default=0)
    expression: str = numbered(2, default="")


class SystemProperties(ProtoMessage):
    tag: str | None = numbered(1, default=None)
    keys: list[str] = numbered(2, default_factory=list)
    message_id: str = numbered(3, default="")
    body_encoding: int = numbered(5, default=0)
    message_type: int = numbered(6, default=0)
    born_timestamp: Timestamp | None = numbered(7, default=None)
    born_host: str = numbered(8, default="")
    store_timestamp: Timestamp | None = numbered(9, default=None)
    store_host: str = numbered(10, default="")
    delivery_timestamp: Timestamp | None = numbered(11, default=None)
    receipt_handle: str | None = numbered(12, default=None)
    queue_id: int = numbered(13, default=0)
    queue_offset: int | None = numbered(14, default=None)
    delivery_attempt: int | None = numbered(16, default=None)
    message_group: str | None = numbered(17, default=None)
    trace_context: str | None = numbered(18, default=None)
    orphaned_transaction_recovery: Duration | None = numbered(19, default=None)


class Message(ProtoMessage):
    topic: Resource | None = numbered(1, default=None)
    user_properties: dict[str, str] = numbered(2, default_factory=dict)
    system_properties: SystemProperties | None = numbered(3, default=None)
    body: bytes = numbered(4, default=b"")


class UserAgent(ProtoMessage):
    language: int = numbered(1, default=0)
    version: str = numbered(2, default="")
    platform: str = numbered(3, default="")
    hostname: str = numbered(4, default="")


class Publishing(ProtoMessage):
    topics: list[Resource] = numbered(1, default_factory=list)
    max_body_size: int = numbered(2, default=0)
    validate_message_type: bool = numbered(3, default=False)


class SubscriptionEntry(ProtoMessage):
    topic: Resource | None = numbered(1, default=None)
    expression: FilterExpression | None = numbered(2, default=None)


class Subscription(ProtoMessage):
    group: Resource | None = numbered(1, default=None)
    subscriptions: list[SubscriptionEntry] = numbered(2, default_factory=list)
    fifo: bool | None = numbered(3, default=None)
    receive_batch_size: int | None = numbered(4, default=None)
    long_polling_timeout: Duration | None = numbered(5, default=None)


class RetryPolicy(ProtoMessage):
    max_attempts: int = numbered(1, default=0)


class Settings(ProtoMessage):
    client_type: int | None = numbered(1, default=None)
    access_point: Endpoints | None = numbered(2, default=None)
    backoff_policy: RetryPolicy | None = numbered(3, default=None)
    request_timeout: Duration | None = numbered(4, default=None)
    publishing: Publishing | None = numbered(5, default=None)
    subscription: Subscription | None = numbered(6, default=None)
    user_agent: UserAgent | None = numbered(7, default=None)


class RecoverOrphanedTransaction(ProtoMessage):
    message: Message | None = numbered(1, default=None)
    transaction_id: str = numbered(2, default="")


class TelemetryCommand(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    settings: Settings | None = numbered(2, default=None)
    recover_orphaned_transaction: RecoverOrphanedTransaction | None = numbered(5, default=None)


class QueryRouteRequest(ProtoMessage):
    topic: Resource | None = numbered(1, default=None)
    endpoints: Endpoints | None = numbered(2, default=None)


class QueryRouteResponse(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    message_queues: list[Queue] = numbered(2, default_factory=list)


class SendMessageRequest(ProtoMessage):
    messages: list[Message] = numbered(1, default_factory=list)


class SendResultEntry(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    message_id: str = numbered(2, default="")
    transaction_id: str = numbered(3, default="")
    offset: int = numbered(4, default=0)
    recall_handle: str = numbered(5, default="")


class SendMessageResponse(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    entries: list[SendResultEntry] = numbered(2, default_factory=list)


class ReceiveMessageRequest(ProtoMessage):
    group: Resource | None = numbered(1, default=None)
    message_queue: Queue | None = numbered(2, default=None)
    filter_expression: FilterExpression | None = numbered(3, default=None)
    batch_size: int = numbered(4, default=0)
    invisible_duration: Duration | None = numbered(5, default=None)
    auto_renew: bool = numbered(6, default=False)
    long_polling_timeout: Duration | None = numbered(7, default=None)
    attempt_id: str | None = numbered(8, default=None)


class ReceiveMessageResponse(ProtoMessage):
    """One part of the answer: a status, a message, or the time of the delivery.

    A `Message` stays in bytes, which `core.read_proxy_message` reads.
    """

    status: Status | None = numbered(1, default=None)
    message: bytes | None = numbered(2, default=None)
    delivery_timestamp: Timestamp | None = numbered(3, default=None)


class AckMessageRequest(ProtoMessage):
    group: Resource | None = numbered(1, default=None)
    topic: Resource | None = numbered(2, default=None)
    entries: list[bytes] = numbered(3, default_factory=list)  # of `acknowledged_entry`


def acknowledged_entry(message_id: str, receipt_handle: str) -> bytes:
    """Return an `AckMessageEntry` of the definition in bytes: there is one per message."""
    return text_field(1, message_id) + text_field(2, receipt_handle)


class AckMessageResultEntry(ProtoMessage):
    message_id: str = numbered(1, default="")
    receipt_handle: str = numbered(2, default="")
    status: Status | None = numbered(3, default=None)


class AckMessageResponse(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    entries: list[AckMessageResultEntry] = numbered(2, default_factory=list)


class ForwardToDeadLettersRequest(ProtoMessage):
    """A `ForwardMessageToDeadLetterQueueRequest` of the definition."""

    group: Resource | None = numbered(1, default=None)
    topic: Resource | None = numbered(2, default=None)
    receipt_handle: str = numbered(3, default="")
    message_id: str = numbered(4, default="")
    delivery_attempt: int = numbered(5, default=0)
    max_delivery_attempts: int = numbered(6, default=0)


class StatusResponse(ProtoMessage):
    """The answer of each method that answers with a status only."""

    status: Status | None = numbered(1, default=None)


class HeartbeatRequest(ProtoMessage):
    group: Resource | None = numbered(1, default=None)
    client_type: int = numbered(2, default=0)


class NotifyClientTerminationRequest(ProtoMessage):
    group: Resource | None = numbered(1, default=None)


class ChangeInvisibleDurationRequest(ProtoMessage):
    group: Resource | None = numbered(1, default=None)
    topic: Resource | None = numbered(2, default=None)
    receipt_handle: str = numbered(3, default="")
    invisible_duration: Duration | None = numbered(4, default=None)
    message_id: str = numbered(5, default="")


class ChangeInvisibleDurationResponse(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    receipt_handle: str = numbered(2, default="")


class EndTransactionRequest(ProtoMessage):
    topic: Resource | None = numbered(1, default=None)
    message_id: str = numbered(2, default="")
    transaction_id: str = numbered(3, default="")
    resolution: int = numbered(4, default=0)
    source: int = numbered(5, default=0)


class RecallMessageRequest(ProtoMessage):
    topic: Resource | None = numbered(1, default=None)
    recall_handle: str = numbered(2, default="")


class RecallMessageResponse(ProtoMessage):
    status: Status | None = numbered(1, default=None)
    message_id: str = numbered(2, default="")
