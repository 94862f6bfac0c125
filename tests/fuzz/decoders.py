"""Fuzzing of what Python reads off the wire: frames, headers, bodies, routes, answers, bodies of
messages. Each target takes bytes and raises only if a decoder did what it must not.

With Atheris, which finds inputs by coverage: `python tests/fuzz/decoders.py TARGET CORPUS ...`
(libFuzzer's options; `ci/fuzz.sh` runs it). `tests/unit/remoting/test_fuzzed_inputs.py` replays
the corpus without it.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

try:
    import atheris
except ImportError:  # the corpus is replayed without it
    atheris = None

with atheris.instrument_imports(include=["ordermq"]) if atheris else nullcontext():
    from ordermq import core
    from ordermq.client.admin_api import AdminApi
    from ordermq.client.broker_api import BrokerApi
    from ordermq.client.name_server_api import NameServerApi
    from ordermq.client.routes import publish_queues, subscribe_queues
    from ordermq.clock import ManualClock
    from ordermq.config import PullConfig, RemotingConfig, SerializeType
    from ordermq.consumer.fetch import fetcher
    from ordermq.consumer.fetch.pull_path import QueuePulls
    from ordermq.consumer.group.admin_requests import AdminRequests
    from ordermq.consumer.queue.statistics import MemberContext
    from ordermq.core import compression
    from ordermq.errors import (
        ConfigError,
        DecodeError,
        Fenced,
        OrderMQError,
        ProtocolError,
        RemotingError,
        RouteError,
    )
    from ordermq.grpc import messages
    from ordermq.grpc.http2 import Http2
    from ordermq.grpc.protobuf import ProtoMessage
    from ordermq.model import properties
    from ordermq.model.message import MessageBatch, MessageView
    from ordermq.model.message_queue import MessageQueue
    from ordermq.model.recall_handle import RecallHandle
    from ordermq.model.stored_message import StoredMessage
    from ordermq.producer import request_reply, transactions
    from ordermq.remoting import admin_bodies, bodies, headers, rare_headers, trace
    from ordermq.remoting.codes import PullFlag, RequestCode
    from ordermq.remoting.command import Command, Framer, decode_json, encode
    from ordermq.remoting.connection import Connection

QUEUE = MessageQueue("TopicTest", "broker-a", 0)
ADDRESS = "127.0.0.1:10911"
OPAQUE = 7  # of every pull of the `pulls` target: answers in the corpus have it
ASKED = 10  # its first offset
LIMIT = 1 << 20
CONFIGS = (
    RemotingConfig(max_frame_bytes=1 << 20, max_decompressed_bytes=LIMIT),
    RemotingConfig(
        max_frame_bytes=1 << 20, namespace="ns", serialize_type=SerializeType.ROCKETMQ,
        access_key="a", secret_key="s",
    ),
)  # fmt: skip


def frames(data: bytes) -> None:
    """A stream of frames, in reads of any size: the same commands, or the same refusal."""
    size, stream = (data[0] if data else 0), data[1:]

    def read(pieces: list[bytes]) -> tuple[list[Command], bool]:
        framer, found = Framer(1 << 20), []
        try:
            for piece in pieces:
                found += framer.feed(piece)
        except ProtocolError:
            return found + framer.completed, True
        assert framer.buffered_bytes <= len(stream)
        return found, False

    whole = read([stream])
    if size:
        assert read([stream[at : at + size] for at in range(0, len(stream), size)]) == whole
    for command in whole[0]:
        # What was read can be written again, and answered: a broker does both.
        framer = Framer(1 << 21)
        (again,) = framer.feed(encode(command))
        assert (again.code, again.opaque) == (command.code, command.opaque)
        assert again.body == command.body
        encode(command.reply(0))


HEADERS = tuple(
    kind
    for kind in (vars(headers) | vars(rare_headers)).values()
    if isinstance(kind, type) and issubclass(kind, headers.Header) and kind is not headers.Header
)


def fields(data: bytes) -> None:
    """The header of a command in JSON, read as every kind of header."""
    try:
        ext = decode_json(data, b"").ext
    except ProtocolError:
        return
    for kind in HEADERS:
        with suppress(ProtocolError):
            read = kind.from_ext(ext)
            assert kind.from_ext(read.to_ext()) == read, kind
    with suppress(ProtocolError):
        assert all(abs(each) < 1 << 63 for each in headers.LockExtHeader.from_ext(ext).epoch_list())


def _route(body: bytes) -> None:
    route = bodies.TopicRoute.from_body(body)
    assert bodies.TopicRoute.from_body(route.to_body()) == route
    with suppress(OrderMQError):
        publish_queues("TopicTest", route)
    with suppress(OrderMQError):
        subscribe_queues("TopicTest", route)


BODIES: tuple[Callable[[bytes], object], ...] = (
    _route,
    bodies.LockBatch.from_body,
    bodies.locked_queues_from_body,
    bodies.Heartbeat.from_body,
    bodies.client_ids_from_body,
    bodies.request_mode_from_body,
    bodies.masters_from_body,
    admin_bodies.progress_from_body,
    admin_bodies.connections_from_body,
    admin_bodies.holdings_from_body,
    bodies.member_subscriptions_from_body,
    admin_bodies.held_locks_from_body,
    lambda body: bodies.queue_table_from_body(body, "offsetTable"),
    StoredMessage.read,
    properties.decode_bytes,
    lambda body: trace.read(body.decode("utf-8", "replace")),
    admin_bodies.queue_ends_from_body,
    lambda body: admin_bodies.topic_table_from_body(body, "broker-a"),
    admin_bodies.group_names_from_body,
    admin_bodies.group_list_from_body,
    bodies.cluster_names_from_body,
)


def parts(data: bytes) -> None:
    """A body, read by the decoder that the first byte names."""
    if data:
        with suppress(ProtocolError):
            BODIES[data[0] % len(BODIES)](data[1:])
        with suppress(ConfigError):  # a handle comes from the program, so that is its error
            RecallHandle.of_text(data[1:].decode("utf-8", "replace"))


def packed(data: bytes) -> None:
    """A compressed body: its kind in the first byte."""
    flags = 1 | (data[0] % 8 << 8 if data else 0)
    with suppress(DecodeError):
        assert len(compression.decompress(data[1:], flags, LIMIT)) <= LIMIT


class _Answering:
    """Connections of a client whose every request gets one answer."""

    def __init__(self, answer: Command) -> None:
        self._answer = answer
        self.outages = self

    def failed(self, *_: object) -> None: ...

    def explained(self, answer: Command) -> Command:
        return answer

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        return self._answer


def _done(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


async def _pull(api: BrokerApi) -> None:
    header = headers.PullHeader("g", QUEUE.topic, 0, ASKED, 32, 0, broker_name="broker-a")
    _, reply, body = await api.pull(ADDRESS, header, 1)
    assert 0 <= reply.next_begin_offset < 1 << 63
    batch = api.batch(QUEUE, body, (), ASKED, reply.next_begin_offset)
    _assert_right(batch, ASKED, reply.next_begin_offset)


CALLS: tuple[Callable[[AdminApi], Coroutine[Any, Any, object]], ...] = (
    _pull,
    lambda api: api.send(ADDRESS, headers.SendHeader("p", "TopicTest", 0), b"x", 1),
    lambda api: api.query_offset(ADDRESS, "g", QUEUE),
    lambda api: api.update_offset(ADDRESS, "g", QUEUE, 5, 1),
    lambda api: api.lock(ADDRESS, "g", [QUEUE]),
    lambda api: api.unlock(ADDRESS, "g", [QUEUE], [1]),
    lambda api: api.max_offset(ADDRESS, QUEUE),
    lambda api: api.search_offset(ADDRESS, QUEUE, 1),
    lambda api: api.heartbeat(ADDRESS, bodies.Heartbeat("me")),
    lambda api: api.consumer_ids(ADDRESS, "g"),
    lambda api: api.request_mode(ADDRESS, "g", "TopicTest"),
    lambda api: api.group_progress(ADDRESS, "g"),
    lambda api: api.group_connections(ADDRESS, "g"),
    lambda api: api.member_report(ADDRESS, "g", "me"),
    lambda api: api.member_subscriptions(ADDRESS, "g", "me"),
    lambda api: api.held_locks(ADDRESS, "g", [QUEUE]),
    lambda api: api.recall(ADDRESS, rare_headers.RecallHeader("TopicTest", "h"), 1),
)


def answers(data: bytes) -> None:
    """The answer to a request of a client: a byte for the request, a header, 0, a body."""
    head, _, body = data[1:].partition(b"\0")
    try:
        answer = decode_json(head, body)
    except ProtocolError:
        return
    number = data[0] % (len(CALLS) + 2)
    connections = cast(Any, _Answering(answer))
    if number < len(CALLS):
        with suppress(RemotingError, Fenced):
            _done(CALLS[number](AdminApi(connections, CONFIGS[0], "me")))
        return
    names = NameServerApi(connections, [ADDRESS], CONFIGS[0], ManualClock())
    work = names.masters() if number > len(CALLS) else names.topic_route("TopicTest")
    with suppress(RemotingError, RouteError):
        asyncio.run(cast(Any, work))


def requests(data: bytes) -> None:
    """A request of a broker to a client: a header, 0, a body."""
    head, _, body = data.partition(b"\0")
    try:
        request = decode_json(head, body)
    except ProtocolError:
        return
    with suppress(ProtocolError):
        check = rare_headers.CheckTransactionHeader.from_ext(request.ext)
        _assert_readable(transactions._view(request.body, check, "ns"))
    with suppress(ProtocolError):
        pushed = rare_headers.PushReplyHeader.from_ext(request.ext)
        replies = request_reply.Requests.__new__(request_reply.Requests)
        replies._namespace = ""
        _assert_readable(replies._view(pushed, request.body))
    client: Any = _Client()
    admin = AdminRequests(
        MemberContext(client, "g", client, client), client, client, subscriptions=tuple,
        assigned=list, seek=lambda *_: None, consume_type="CONSUME_PASSIVELY", thread_count=1,
    )  # fmt: skip
    if request.code != RequestCode.GET_CONSUMER_RUNNING_INFO:  # reads nothing of the request
        answer = admin.answer(request)
        if isinstance(answer, Command):
            encode(answer)


class _Client:
    """Stands for what admin requests look at."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.client_id = "me"
        self.config = CONFIGS[0]
        self.runtime = self
        self.is_ordered = True

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        return _done(work)

    async def consume_directly(self, batch: MessageBatch, assigned: object) -> Any:
        for view in batch:
            _assert_readable(view)
        raise ProtocolError("enough")

    def topics(self) -> list[str]:
        return []

    def __getitem__(self, name: str) -> int:
        return 0


def _assert_readable(view: MessageView) -> None:
    for read in ("body", "properties", "tags", "keys", "born_host", "message_id", "topic"):
        with suppress(ProtocolError):
            getattr(view, read)


def _assert_right(batch: MessageBatch, first: int, end: int) -> None:
    offsets = batch.offsets.tolist()
    assert offsets == sorted(set(offsets))
    assert all(first <= offset < end for offset in offsets)
    for view in batch:
        assert view.queue_id == QUEUE.queue_id
        _assert_readable(view)
    places = batch.columns("positions")["positions"]
    for view, place in zip(batch, places, strict=True):
        if not view.sys_flag & 0xC0:  # else the checksum is that of the record around it
            (stored,) = struct.unpack_from(">I", batch.body, place + 8)
            assert zlib.crc32(view.stored_body) & 0x7FFFFFFF == stored


class _Transport(asyncio.Transport):
    """Drops what is written; ends when it is told to."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.is_aborted = False

    def fileno(self) -> int:
        return -1

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def write(self, data: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class _Target:
    """A queue without limits that checks what it gets."""

    def __init__(self) -> None:
        self.next = ASKED

    def accept(self, batch: MessageBatch, next_offset: int, max_offset: int) -> None:
        _assert_right(batch, self.next, next_offset)
        assert next_offset == batch.last_offset + 1
        assert 0 <= max_offset < 1 << 63
        self.next = next_offset

    def may_pull(self) -> bool:
        return True


class _Events:
    def on_request(self, connection: Connection, command: Command) -> None:
        connection.respond(command, command.reply(0))

    def on_closed(self, connection: Connection, error: Exception | None) -> None: ...


async def _serve(data: bytes) -> None:
    kind, size, stream = data[0], data[1], data[2:]
    config = CONFIGS[kind % 2]
    connection = Connection(ADDRESS, ManualClock(), config, _Events())
    transport = _Transport()
    connection.connection_made(transport)
    header = headers.PullHeader("g", QUEUE.topic, 0, 0, 32, PullFlag.SUSPEND, subscription="*")
    target = _Target()
    api = BrokerApi(cast(Any, None), config, "me")
    pulls = QueuePulls(
        cast(Any, SimpleNamespace(queue=QUEUE)), cast(Any, target), api.pull_frames(header),
        PullConfig(broker_suspend_ms=500, pull_timeout_ms=1_000), ASKED, (), 0,
        is_filtered=False, window=None,
    )  # fmt: skip
    loop = fetcher.PullLoop(api, connection, pulls)
    loop.start()
    other = connection.begin_request(
        Command(RequestCode.LOCK_BATCH_MQ, opaque=OPAQUE + 1), timeout_ms=1_000
    )
    for at in range(0, len(stream), size or len(stream)):
        if transport.is_aborted:
            break
        connection.data_received(stream[at : at + (size or len(stream))])
    connection.connection_lost(None)
    assert loop.offset == target.next
    for ended in (loop.ended, other):
        error = ended.exception()
        assert error is None or isinstance(error, OrderMQError), error


def pulls(data: bytes) -> None:
    """Answers of a broker to a client that pulls and has asked for a lock, in reads of any size."""
    if len(data) > 2:
        with mock.patch.object(fetcher, "next_opaque", return_value=OPAQUE):
            asyncio.run(_serve(data))


class _Heard:
    """Events of received bytes, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def on_headers(self, stream_id: int, headers: dict[str, str]) -> None:
        self.events.append((stream_id, headers))

    def on_data(self, stream_id: int, data: bytes) -> None:
        self.events.append((stream_id, data))

    def on_stream_end(self, stream_id: int, error: str) -> None:
        self.events.append((stream_id, error))

    def on_window(self, stream_id: int) -> None:
        self.events.append((stream_id,))

    def on_goaway(self, last_stream_id: int, reason: str) -> None:
        self.events.append((last_stream_id, reason))


def http2(data: bytes) -> None:
    """Frames of a server, on streams 1, 3 and 5, in reads of any size: the same, or refused."""
    size, stream = (data[0] if data else 0), data[1:]

    def read(pieces: list[bytes]) -> tuple[list[tuple[object, ...]], bool, bytes]:
        heard = _Heard()
        connection, is_refused = Http2(heard), False
        for _ in range(3):
            connection.begin(b"\x83")
        try:
            for piece in pieces:
                connection.receive(piece)
        except ProtocolError:
            is_refused = True
        return heard.events, is_refused, connection.data_to_send()

    whole = read([stream])
    if size:
        assert read([stream[at : at + size] for at in range(0, len(stream), size)]) == whole


PROTO_MESSAGES = tuple(
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, ProtoMessage) and kind is not ProtoMessage
)


def proto(data: bytes) -> None:
    """A message of gRPC, of the kind that the first byte names; messages also as records."""
    if not data:
        return
    kind, record = PROTO_MESSAGES[data[0] % len(PROTO_MESSAGES)], None
    with suppress(ProtocolError):
        read = kind.from_bytes(data[1:])
        assert kind.from_bytes(read.to_bytes()) == read
        if isinstance(read, messages.Message):
            part = messages.ReceiveMessageResponse(message=data[1:]).to_bytes()
            *_, record = core.read_proxy_message(part, "TopicTest") or (b"",)
    if record is not None:
        assert len(MessageBatch(QUEUE, record)) == 1


TARGETS: dict[str, Callable[[bytes], None]] = {
    work.__name__: work
    for work in (frames, fields, parts, packed, answers, requests, pulls, http2, proto)
}


def main() -> None:
    """Fuzz one target with libFuzzer's arguments."""
    if atheris is None:
        sys.exit("fuzzing needs Atheris: pip install 'ordermq[fuzz]'")
    name = sys.argv.pop(1)
    work = TARGETS[name]
    atheris.Setup(sys.argv, lambda data: work(bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
