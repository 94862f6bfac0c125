"""Sends that arrive together: stored and answered as one by one
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq import core
from ordermq.broker import EmbeddedBroker
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.processors.received_sends import NoReceivedSends, ReceivedSends
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Write
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.wire_client import WireClient, batch_body, records

PLAIN = SendHeader("producers", "orders", 0, 0, 5, 7)


def request(header: SendHeader = PLAIN, body: bytes = b"x", **properties: str) -> Command:
    header = replace(header, properties=props.encode(properties))
    code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    return Command.request(code, header.to_ext(), body)


def with_id(number: int, header: SendHeader = PLAIN) -> Command:
    unique_id = f"7F0000010001{number:0>20}"
    return request(header, b"%d" % number, UNIQ_KEY=unique_id, TAGS="t")


def without(sent: Command, name: str) -> Command:
    sent.ext = {key: value for key, value in sent.ext.items() if key != name}
    return sent


def oneway(sent: Command) -> Command:
    sent.flag = ONEWAY_FLAG
    return sent


def of_queue(number: int) -> SendHeader:
    return replace(PLAIN, queue_id=number)


def every_kind() -> list[Command]:
    """Plain sends to several queues, and between them one of everything that is not plain."""
    others = [
        with_id(1),  # a copy of the first one, which is not durable yet
        oneway(with_id(50)),
        request(replace(PLAIN, batch=True), batch_body([b"b1", b"b2"], b"TAGS\x01t\x02")),
        request(DELAY="2"),
        request(TIMER_DELAY_MS="50000"),
        request(TRAN_MSG="true", UNIQ_KEY="half"),
        request(PROPERTY_MESSAGE_REPLY_TO_CLIENT="me"),
        # The group is ordered, so they are dead letters; the first one only makes the topic.
        *(with_id(1, replace(PLAIN, topic="%RETRY%group")) for _ in range(3)),
        request(replace(PLAIN, topic="new topic?")),
        request(replace(PLAIN, topic="made by a send")),
        request(replace(PLAIN, topic="made_by_a_send")),
        request(replace(PLAIN, topic="TBW102")),
        request(replace(PLAIN, reconsume_times=3)),
        request(replace(PLAIN, max_reconsume_times=3)),
        request(replace(PLAIN, sys_flag=0x40)),
        request(of_queue(77)),
        request(replace(PLAIN, born_timestamp_ms=1 << 70)),
        request(replace(PLAIN, flag=1 << 40)),
        without(request(), "a"),
        without(request(), "e"),
        without(request(), "h"),
        request(body=b"x" * 2_000),
        request(long="y" * 33_000),
        request(),  # without an id
        Command.request(RequestCode.GET_BROKER_CLUSTER_INFO),
        Command.request(12_345),
    ]
    found = []
    for number, other in enumerate(others):
        for queue in (0, 1, 0):
            found.append(with_id(100 * number + len(found), of_queue(queue)))
        found.append(other)
    return [with_id(1), *found, with_id(9_999)]


def answers(client: WireClient, sent: list[Command]) -> list[tuple[object, ...] | None]:
    """Code, remark and fields of the answer to each; the parts that tell addresses are left out."""
    client.round_trip()
    found: list[tuple[object, ...] | None] = []
    for one in sent:
        if one.is_oneway:
            assert not client.has_answer(one)
            found.append(None)
            continue
        answer = client.wait(one)
        ext = dict(answer.ext)
        if "msgId" in ext:
            ext["msgId"] = ",".join(each[16:] for each in ext["msgId"].split(","))
        found.append((answer.code, answer.remark, ext))
    return found


def stored(client: WireClient) -> list[tuple[object, ...]]:
    found = []
    for topic, queues in (
        ("orders", 2),
        ("made_by_a_send", 1),
        ("%RETRY%group", 1),
        ("%DLQ%group", 1),
    ):
        for queue in range(queues):
            body = client.pull(topic, 0, queue, count=1_000, tags="t || *").body
            found += [
                (topic, m.queue_id, m.queue_offset, m.physical_offset, m.body, m.properties, m.flag,
                 m.sys_flag, m.born_ms, m.stored_ms, m.reconsume_times)
                for m in records(body)
            ]  # fmt: skip
    return found


@dataclass
class CountedSends:
    """Received sends that also count what they take."""

    chosen: ReceivedSends
    taken: int = 0  # bytes

    def take(self, connection: BrokerConnection, received: bytes) -> int:
        size = self.chosen.take(connection, received)
        self.taken += size
        return size


def counted_sends(broker: EmbeddedBroker) -> CountedSends:
    assert broker._server is not None
    counted = CountedSends(broker._server._received_sends)
    broker._server._received_sends = counted
    return counted


def leave_to_single_sends(broker: EmbeddedBroker) -> None:
    assert broker._server is not None
    broker._server._received_sends = NoReceivedSends()


@pytest.fixture(params=["together", "single"])
def way(request: pytest.FixtureRequest) -> Callable[[EmbeddedBroker], None]:
    """Chooses how a broker takes sends that come together."""
    return leave_to_single_sends if request.param == "single" else lambda broker: None


@pytest.mark.parametrize("is_in_pieces", [True, False])
def test_sends_that_come_together_are_stored_and_answered_as_one_by_one(
    tmp_path: Path, is_in_pieces: bool
) -> None:
    results, taken = [], 0
    for kind in ("together", "single"):
        config = BrokerConfig(max_message_bytes=1_500, durability="os")
        path = tmp_path / f"{kind}.db"
        with (
            EmbeddedBroker(path, config=config, clock=ManualClock()) as broker,
            WireClient(broker.port) as client,
        ):
            client.create_topic("orders", 2)
            assert client.lock("group", "orders", 0).code == 0
            counted = counted_sends(broker)
            if kind == "single":
                leave_to_single_sends(broker)
            sent = every_kind()
            size = 1 if kind == "single" else 4 if is_in_pieces else len(sent)
            # The first one alone, for three plain ones and then another are a piece.
            pieces = range(1 - size, len(sent), size)
            for at in pieces:
                client.socket.sendall(b"".join(map(encode, sent[max(at, 0) : at + size])))
                client.round_trip()
            statistics = broker.statistics
            results.append((
                answers(client, sent), stored(client), statistics.messages_stored,
                statistics.copies_dropped, statistics.requests_failed,
                statistics.requests - len(pieces),
            ))  # fmt: skip
            taken = max(taken, counted.taken)
    together, single = results
    assert together == single
    assert len(single[1]) > 70
    assert {answer[0] for answer in single[0] if answer} == {0, 1, 3, 13, 29}
    if is_in_pieces and core.HAS_ENGINE:
        assert taken > 10_000


@pytest.mark.parametrize("seed", range(4))
def test_sends_read_in_any_pieces_keep_their_order(
    client: WireClient, broker: EmbeddedBroker, seed: int
) -> None:
    client.create_topic("orders", 3)
    drawn = random.Random(seed)
    sent = []
    for number in range(300):
        one = with_id(number, of_queue(drawn.randrange(3)))
        sent.append(oneway(one) if drawn.random() < 0.1 else one)
    # Single sends between, whose ids are not known yet and never will be.
    sent += [request(of_queue(number % 3), b"%d" % number) for number in range(300, 310)]
    sent += [with_id(number, of_queue(drawn.randrange(3))) for number in range(310, 500)]
    data, at = b"".join(map(encode, sent)), 0
    counted = counted_sends(broker)
    while at < len(data):
        end = at + drawn.choice([1, 7, 300, 2_000, 9_000])
        client.socket.sendall(data[at:end])
        at = end
    queues: dict[str, list[Command]] = {}
    for one in sent:
        queues.setdefault(one.ext["e"], []).append(one)
    for queue, commands in queues.items():
        for offset, one in enumerate(commands):
            if not one.is_oneway:
                assert client.wait(one).ext["queueOffset"] == str(offset)
        body = client.pull("orders", 0, int(queue), count=1_000).body
        assert [m.body for m in records(body)] == [one.body for one in commands]
    assert broker.statistics.messages_stored == 500
    assert not any(client.has_answer(one) for one in sent if one.is_oneway)
    if core.HAS_ENGINE:
        assert counted.taken > 20_000


def test_runs_of_several_producers_follow_each_other(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    client.create_topic("orders", 1)
    assert client.wait(start(client, with_id(0))).code == 0
    sent = [
        request(body=b"%d" % number, UNIQ_KEY=f"7F00000{producer}0001{number:0>20}")
        for number, producer in enumerate("222333222")
    ]
    counted, data = counted_sends(broker), b"".join(map(encode, sent))
    client.socket.sendall(data)
    assert [client.wait(one).ext["queueOffset"] for one in sent] == [str(n) for n in range(1, 10)]
    assert counted.taken == (len(data) if core.HAS_ENGINE else 0)


def test_plain_sends_that_come_together_are_one_write(
    client: WireClient,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic("orders", 8)
    assert broker._server is not None
    store = broker._server._context.store
    writes: list[Write] = []
    submit = store.submit
    monkeypatch.setattr(store, "submit", lambda write: (writes.append(write), submit(write)))
    sent = [with_id(number, of_queue(number % 8)) for number in range(64)]
    client.socket.sendall(b"".join(map(encode, sent)))
    for number, one in enumerate(sent):
        assert int(client.wait(one).ext["queueOffset"]) == number // 8
    # The kernel may give the bytes in two reads. Without a native reader of sends, each is a write.
    assert len(writes) <= (4 if core.HAS_ENGINE else 64)
    assert sum(len(append.records) for write in writes for append in write.appends) == 64
    assert broker.statistics.messages_stored == 64


def test_offsets_of_copies_are_those_of_the_first_whoever_sends_between(
    client: WireClient, broker: EmbeddedBroker, way: Callable[[EmbeddedBroker], None]
) -> None:
    way(broker)
    client.create_topic("orders", 1)
    for number in (3, 2, 1):  # ids that fall: from here on they are kept by offset
        assert client.wait(start(client, with_id(number))).code == 0
    other = replace(PLAIN, producer_group="others")
    # One queue, two kinds of headers.
    sent = [with_id(number, other if number % 3 else PLAIN) for number in range(10, 30)]
    client.socket.sendall(b"".join(map(encode, sent)))
    offsets = [client.wait(one).ext["queueOffset"] for one in sent]
    assert offsets == [str(number) for number in range(3, 23)]
    again = [with_id(number) for number in range(10, 30)]
    client.socket.sendall(b"".join(map(encode, again)))
    assert [client.wait(one).ext["queueOffset"] for one in again] == offsets
    assert broker.statistics.copies_dropped == 20
    assert broker.statistics.messages_stored == 23


def start(client: WireClient, sent: Command) -> Command:
    client.socket.sendall(encode(sent))
    return sent


@pytest.mark.parametrize("way", ["together", "single"])
def test_sends_that_could_not_be_stored_are_all_refused_and_can_be_sent_again(
    tmp_path: Path, way: str
) -> None:
    # Behind another request of the same read, each send is a command.
    before = [Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)] if way == "single" else []
    with BrokerProcess(tmp_path / "broker.db") as broker, WireClient(broker.port) as client:
        client.create_topic("orders", 2)
        broker.limit_file_size(1)
        refused = [with_id(number, of_queue(number % 2)) for number in range(20)]
        client.socket.sendall(b"".join(map(encode, before + refused)))
        for one in refused:
            answer = client.wait(one)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "could not write" in (answer.remark or "")
        broker.lift_limit()
        # None of them is in flight any more; the last ones first, whose ids are the highest.
        again = [with_id(number, of_queue(number % 2)) for number in (18, 19, *range(18))]
        offsets = []
        for some in (again[:1], again[1:2], again[2:]):
            client.socket.sendall(b"".join(map(encode, some)))
            offsets += [int(client.wait(one).ext["queueOffset"]) for one in some]
        assert offsets == [number // 2 for number in range(20)]


def test_copies_of_sends_that_are_stored_are_answered_at_once(
    client: WireClient, broker: EmbeddedBroker, way: Callable[[EmbeddedBroker], None]
) -> None:
    way(broker)
    client.create_topic("orders", 1)
    sent = [with_id(number) for number in range(4)]
    client.socket.sendall(b"".join(map(encode, sent)))
    assert [client.wait(one).ext["queueOffset"] for one in sent] == ["0", "1", "2", "3"]
    # The last id first: all that were in flight are durable.
    for number in (3, 0, 2):
        copy = start(client, with_id(number))
        assert client.wait(copy).ext["queueOffset"] == str(number)
    assert broker.statistics.copies_dropped == 3


def test_sends_behind_requests_that_wait_keep_their_order() -> None:
    async def check() -> None:
        found: list[object] = []

        def take_sends(connection: BrokerConnection, received: bytes) -> int:
            found.append(received)
            return len(received)

        def handle(connection: BrokerConnection, request: Command) -> None:
            found.append(request.body)

        ignore: Any = lambda *_: None  # noqa: E731
        unlimited: Any = SimpleNamespace(note_unfinished=ignore)
        connection = BrokerConnection(
            BrokerConfig(),
            unlimited,
            BrokerStatistics(),
            ignore,
            take_sends,
            handle,
            ignore,
            ignore,
        )
        connection._transport = transport = cast(Any, SimpleNamespace(
            get_write_buffer_size=lambda: 0, pause_reading=ignore, resume_reading=ignore,
            is_closing=lambda: False, close=ignore,
        ))  # fmt: skip
        frames = [encode(request(body=b"%d" % number)) for number in range(4)]
        connection.data_received(frames[0])
        connection.pause_writing()
        connection.data_received(frames[1])
        connection.data_received(frames[2])
        assert found == frames[:1]
        connection.resume_writing()
        connection.data_received(frames[3])
        transport.is_closing = lambda: True
        connection.data_received(frames[0])
        assert found == [frames[0], b"1", b"2", frames[3]]

    asyncio.run(check())


def test_sends_that_come_together_while_the_broker_closes_may_be_sent_again(
    client: WireClient, stop_writing: Callable[[], None]
) -> None:
    client.create_topic("orders", 1)
    stop_writing()
    sent = [with_id(number) for number in range(3)]
    client.socket.sendall(b"".join(map(encode, sent)))
    for one in sent:
        assert client.wait(one).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_each_of_the_sends_that_come_together_needs_its_own_signature() -> None:
    config = BrokerConfig(accounts={"shop": "the secret"})
    with EmbeddedBroker(config=config) as broker, WireClient(broker.port) as client:
        sent = [with_id(number) for number in range(9)]
        for one in sent[::3]:
            Credentials("shop", "the secret").sign(one)
        client.socket.sendall(b"".join(map(encode, sent)))
        codes = [client.wait(one).code for one in sent]
        assert codes == [0, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION] * 3
        assert broker.statistics.messages_stored == 3
