"""A proxy of RocketMQ 5 for tests, as far as a whole client needs one."""

from __future__ import annotations

from ordermq.grpc.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    Broker,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    Message,
    Permission,
    QueryRouteRequest,
    QueryRouteResponse,
    Queue,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageResponse,
    SendResultEntry,
    Settings,
    Status,
    StatusResponse,
    SystemProperties,
    TelemetryCommand,
    Timestamp,
)
from ordermq.remoting.pop import ORDERED, UNORDERED
from tests.component.grpc_server import Asked, Said

OK = Status(code=Code.OK)
UNKNOWN_CLIENT = Status(code=40022, message="cannot find client settings for this client")


class WholeProxy:
    """One ordered queue, from which each group gets the messages that were put.

    Attributes:
        clients: ids of those whose settings are known.
        settings: how often some were told.
        heartbeats, receives: how many came.
        poll_s: how long a receive waits while there is nothing.
        is_silent: receives get no answer.
        has_route: of the topic; False, as while its brokers are away.
        is_ordered: what it says of every group; None: what the member said, as a proxy does that
            cannot ask a broker.
    """

    def __init__(self, *, is_ordered: bool | None = True) -> None:
        self.clients: set[str] = set()
        self.settings = 0
        self.heartbeats = 0
        self.receives = 0
        self.poll_s = 0.05
        self.is_ordered = is_ordered
        self.is_silent = False
        self.has_route = True
        self._said: dict[str, bool] = {}  # what members said of their groups, by client
        self._messages: list[bytes] = []
        self._next: dict[str, int] = {}  # offsets by group
        self._returned: dict[str, list[int]] = {}

    def put(self, body: bytes) -> None:
        self._messages.append(body)

    def __call__(self, asked: Asked) -> Said | None:
        method = asked.headers[":path"].rpartition("/")[2]
        client = asked.headers["x-mq-client-id"]
        answer = getattr(self, f"_{method}")(client, asked.message)
        return answer if isinstance(answer, Said | None) else Said((answer.to_bytes(),))

    def _Telemetry(self, client: str, data: bytes) -> Said:
        command = TelemetryCommand.from_bytes(data)
        assert command.settings is not None
        self.clients.add(client)
        self.settings += 1
        told: Settings = command.settings
        if told.subscription is not None:
            self._said[client] = bool(told.subscription.fifo)
            told.subscription.fifo = self._is_ordered(client)
        return Said((TelemetryCommand(status=OK, settings=told).to_bytes(),), goes_on=True)

    def _Heartbeat(self, client: str, data: bytes) -> StatusResponse:
        self.heartbeats += 1
        return StatusResponse(status=OK if client in self.clients else UNKNOWN_CLIENT)

    def _NotifyClientTermination(self, client: str, data: bytes) -> StatusResponse:
        self.clients.discard(client)
        return StatusResponse(status=OK)

    def _QueryRoute(self, client: str, data: bytes) -> QueryRouteResponse:
        if not self.has_route:
            return QueryRouteResponse(status=Status(code=Code.TOPIC_NOT_FOUND))
        request = QueryRouteRequest.from_bytes(data)
        broker = Broker(name="broker-a", endpoints=request.endpoints)
        queue = Queue(permission=Permission.READ_WRITE, broker=broker)
        return QueryRouteResponse(status=OK, message_queues=[queue])

    def _SendMessage(self, client: str, data: bytes) -> SendMessageResponse:
        return SendMessageResponse(status=OK, entries=[SendResultEntry(status=OK, message_id="id")])

    def _ReceiveMessage(self, client: str, data: bytes) -> Said | None:
        self.receives += 1
        if self.is_silent:
            return None
        request = ReceiveMessageRequest.from_bytes(data)
        assert request.group is not None
        if client not in self.clients:
            status = ReceiveMessageResponse(status=UNKNOWN_CLIENT)
            return Said((status.to_bytes(),), delay_s=self.poll_s)
        group = request.group.name
        offsets = self._returned.pop(group, [])
        if not offsets and (at := self._next.get(group, 0)) < len(self._messages):
            offsets = list(range(at, len(self._messages)))
            self._next[group] = len(self._messages)
        if not offsets:
            status = ReceiveMessageResponse(status=Status(code=Code.MESSAGE_NOT_FOUND))
            return Said((status.to_bytes(),), delay_s=self.poll_s)
        is_ordered = self._is_ordered(client)
        parts = [ReceiveMessageResponse(message=self._message(at, is_ordered)) for at in offsets]
        parts.append(ReceiveMessageResponse(status=OK))
        return Said(tuple(part.to_bytes() for part in parts))

    def _is_ordered(self, client: str) -> bool:
        return self._said[client] if self.is_ordered is None else self.is_ordered

    def _message(self, offset: int, is_ordered: bool) -> Message:
        revive_queue = ORDERED if is_ordered else UNORDERED
        handle = f"0 1795813332842 600000 {revive_queue} 0 broker-a 0 {offset} {offset * 100}"
        return Message(
            system_properties=SystemProperties(
                message_id=f"id-{offset}", queue_offset=offset, receipt_handle=handle,
                delivery_attempt=1, born_timestamp=Timestamp.of_ms(1),
                store_timestamp=Timestamp.of_ms(2),
            ),
            body=self._messages[offset],
        )  # fmt: skip

    def _AckMessage(self, client: str, data: bytes) -> AckMessageResponse:
        # An entry has the fields of a result, but the status.
        request = AckMessageRequest.from_bytes(data)
        entries = [AckMessageResultEntry.from_bytes(entry) for entry in request.entries]
        for entry in entries:
            entry.status = OK
        return AckMessageResponse(status=OK, entries=entries)

    def _ChangeInvisibleDuration(self, client: str, data: bytes) -> ChangeInvisibleDurationResponse:
        request = ChangeInvisibleDurationRequest.from_bytes(data)
        assert request.group is not None
        assert request.invisible_duration is not None
        if not request.invisible_duration.seconds:
            offset = int(request.receipt_handle.split()[-2])
            self._returned.setdefault(request.group.name, []).append(offset)
        return ChangeInvisibleDurationResponse(status=OK)
