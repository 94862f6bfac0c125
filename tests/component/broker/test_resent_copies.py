"""Copies that a producer sends again: stored once, answered with the first one's offset
(docs/internals/semantics.md#copies-sent-again)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.model.names import dead_letter_topic, retry_topic
from ordermq.remoting.codes import RequestCode, TransactionFlag
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.rare_headers import EndTransactionHeader
from tests.component.broker.broker_process import BrokerProcess
from tests.component.broker.conftest import Connect
from tests.component.broker.wire_client import WireClient, batch_body, records
from tests.waiting import eventually


def unique(number: int | str) -> dict[str, str]:
    return {"UNIQ_KEY": f"7F0000010001{number:0>20}"}


def bodies(client: WireClient, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [m.body for m in records(client.pull(topic, 0, queue_id, count=1_000).body)]


def test_a_copy_that_a_middlebox_held_back_is_consumed_once(
    connect: Connect, broker: EmbeddedBroker
) -> None:
    """A, B, A: the first copy of A arrives after the producer sent A again, and B."""
    stalled, fresh, reader = connect("stalled"), connect("fresh"), connect("reader")
    first = SendHeader("producers", "orders", 0, properties="UNIQ_KEY\x01A\x02")
    frame = encode(Command.request(RequestCode.SEND_MESSAGE_V2, first.to_ext(), b"A"))
    stalled.socket.sendall(frame[:20])
    again = fresh.send("orders", b"A", properties={"UNIQ_KEY": "A"})
    fresh.send("orders", b"B", properties={"UNIQ_KEY": "B"})
    stalled.socket.sendall(frame[20:])
    stalled.round_trip()
    (late,) = stalled.answers()
    assert late.code == 0
    assert (late.ext["queueOffset"], late.ext["msgId"]) == ("0", again.ext["msgId"])
    assert bodies(reader) == [b"A", b"B"]
    assert broker.statistics.copies_dropped == 1
    assert broker.statistics.messages_stored == 2


def test_without_a_window_every_copy_is_stored_as_on_rocketmq() -> None:
    config = BrokerConfig(duplicate_window=0)
    with EmbeddedBroker(config=config) as broker, WireClient(broker.port) as client:
        for _ in range(3):
            client.send("orders", b"A", properties=unique(1))
        assert bodies(client) == [b"A"] * 3


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"another body"},
        {"queue_id": 1},
        {"topic": "others"},
        {"properties": unique(2)},
        {"properties": {}},
        {"properties": {"MY_UNIQ_KEY": unique(1)["UNIQ_KEY"]}},
        {"reconsume_times": 1},
    ],
    ids=str,
)
def test_only_a_real_copy_is_dropped(
    client: WireClient, broker: EmbeddedBroker, other: dict[str, Any]
) -> None:
    sent: dict[str, Any] = {"topic": "orders", "body": b"A", "properties": unique(1)}
    assert client.send(**sent).code == 0
    assert client.send(**(sent | other)).code == 0
    assert broker.statistics.messages_stored == 2
    assert broker.statistics.copies_dropped == 0


def test_the_id_is_found_wherever_it_stands(client: WireClient) -> None:
    for place in range(3):
        names = ["TAGS", "KEYS"]
        names.insert(place, "UNIQ_KEY")
        properties = {name: f"{name}-{place}" for name in names}
        client.send("orders", b"A", properties=properties)
        client.send("orders", b"A", properties=properties)
    assert len(bodies(client)) == 3


def test_copies_at_the_same_time_are_stored_once(connect: Connect) -> None:
    """The second copy arrives before the first one is durable."""
    clients = [connect(f"client-{n}") for n in range(4)]
    started = [
        (client, client.start_send("orders", str(number).encode(), properties=unique(number)))
        for number in range(50)
        for client in clients
    ]
    offsets: dict[int, set[str]] = {}
    for place, (client, one) in enumerate(started):
        offsets.setdefault(place // 4, set()).add(client.wait(one).ext["queueOffset"])
    assert all(len(found) == 1 for found in offsets.values())
    assert sorted(map(int, bodies(clients[0]))) == list(range(50))


def test_a_batch_is_dropped_whole(client: WireClient, broker: EmbeddedBroker) -> None:
    def send(first: int, count: int) -> Command:
        body = b"".join(
            batch_body([str(n).encode()], f"UNIQ_KEY\x01{n}\x02".encode())
            for n in range(first, first + count)
        )
        header = SendHeader("producers", "orders", 0, batch=True)
        return client.call(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), body)

    assert send(0, 3).ext["queueOffset"] == "0"
    second = send(3, 2)
    copy = send(0, 3)
    assert copy.ext["queueOffset"] == "0"
    assert len(copy.ext["msgId"].split(",")) == 3
    assert send(3, 2).ext["msgId"] == second.ext["msgId"]
    assert bodies(client) == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.statistics.copies_dropped == 5
    # Its first message alone is a copy of it, too.
    header = SendHeader("producers", "orders", 0, properties="UNIQ_KEY\x010\x02")
    client.call(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"0")
    assert len(bodies(client)) == 5


def test_one_way_copies_are_dropped(client: WireClient) -> None:
    header = SendHeader("producers", "orders", 0, properties="UNIQ_KEY\x01A\x02")
    for _ in range(3):
        client.start(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"A", flag=ONEWAY_FLAG)
    client.send("orders", b"B")
    assert bodies(client) == [b"A", b"B"]


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000], ids=["forward", "back"])
def test_a_copy_is_known_after_a_restart_under_another_clock(tmp_path: Path, jump_ms: int) -> None:
    def started(clock: ManualClock) -> EmbeddedBroker:
        return EmbeddedBroker(tmp_path, clock=clock)

    clock = ManualClock()
    with started(clock) as broker, WireClient(broker.port) as client:
        for number in (1, 2):
            client.send("orders", b"%d" % number, properties=unique(number))
    later = ManualClock(wall_ms=clock.wall_ms() + jump_ms)
    with started(later) as broker, WireClient(broker.port) as client:
        for number in (1, 2):
            client.send("orders", b"%d" % number, properties=unique(number))
        assert bodies(client) == [b"1", b"2"]
        assert broker.statistics.copies_dropped == 2


def test_a_copy_is_known_after_a_moment_in_which_the_clock_was_ahead(tmp_path: Path) -> None:
    ahead = ManualClock(wall_ms=ManualClock().wall_ms() + 3_600_000)
    with EmbeddedBroker(tmp_path, clock=ahead) as broker, WireClient(broker.port) as client:
        client.send("others", b"1", properties=unique(1))
    for copies in (0, 1):
        with (
            EmbeddedBroker(tmp_path, clock=ManualClock()) as broker,
            WireClient(broker.port) as client,
        ):
            client.send("orders", b"2", properties=unique(2))
            assert broker.statistics.copies_dropped == copies


def test_a_retry_is_no_copy_of_the_message_it_repeats(client: WireClient) -> None:
    client.heartbeat("group", {"orders": "*"})
    for times in range(1, 4):
        answer = client.send(
            retry_topic("group"), b"A", properties=unique(1), reconsume_times=times
        )
        assert answer.code == 0
    assert bodies(client, retry_topic("group")) == [b"A"] * 3
    # Beyond its retries it goes to the dead letters, with the same id.
    client.send(
        retry_topic("group"), b"A", properties=unique(1), reconsume_times=4, max_reconsume_times=3
    )
    client.send(
        retry_topic("group"), b"A", properties=unique(1), reconsume_times=4, max_reconsume_times=3
    )
    assert client.max_offset(dead_letter_topic("group")) == 2


def test_a_delayed_copy_is_delivered_once(connect: Connect, clock: ManualClock) -> None:
    client, reader = connect("client"), connect("reader")
    for _ in range(2):
        assert client.send("orders", b"A", properties=unique(1) | {"DELAY": "1"}).code == 0
    waiting = reader.start_pull("orders", 0, suspend_ms=1_000_000)
    assert [m.body for m in records(reader.wait(waiting, clock).body)] == [b"A"]
    # Also when the first one has been delivered.
    assert client.send("orders", b"A", properties=unique(1) | {"DELAY": "1"}).code == 0
    clock.advance(5_000)
    assert bodies(reader) == [b"A"]


def test_a_timed_copy_gets_the_same_handle_and_is_recalled_with_it(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    properties = unique(1) | {"TIMER_DELIVER_MS": str(clock.wall_ms() + 60_000)}
    first = client.send("orders", b"A", properties=properties)
    copy = client.send("orders", b"A", properties=properties)
    assert copy.ext == first.ext
    assert broker.statistics.timed_messages == 1
    ext = {"topic": "orders", "recallHandle": copy.ext["recallHandle"]}
    assert client.call(RequestCode.RECALL_MESSAGE, ext).code == 0
    # A late copy must not bring back what was recalled.
    assert client.send("orders", b"A", properties=properties).code == 0
    assert broker.statistics.timed_messages == 0


def test_a_copy_of_a_half_message_joins_its_transaction(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    properties = unique(1) | {"TRAN_MSG": "true", "PGROUP": "producers"}
    first = client.send("orders", b"A", properties=properties)
    copy = client.send("orders", b"A", properties=properties)
    assert copy.ext == first.ext
    assert broker.statistics.half_messages == 1
    offset = int(copy.ext["queueOffset"])
    end = EndTransactionHeader(
        "producers", offset, int(copy.ext["msgId"][16:], 16), TransactionFlag.COMMIT,
        message_id=copy.ext["msgId"], transaction_id=properties["UNIQ_KEY"],
    )  # fmt: skip
    assert client.call(RequestCode.END_TRANSACTION, end.to_ext()).code == 0
    # A copy that comes after the end begins no second transaction.
    assert client.send("orders", b"A", properties=properties).code == 0
    assert broker.statistics.half_messages == 0
    assert bodies(client) == [b"A"]


WAITING: dict[str, dict[str, str]] = {
    "delayed": {"DELAY": "5"},
    "timed": {"TIMER_DELAY_MS": "60000"},
    "half": {"TRAN_MSG": "true", "PGROUP": "producers"},
}


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("other", [{"body": b"B"}, {"queue_id": 1}, {"topic": "others"}], ids=str)
def test_only_a_real_copy_of_a_message_that_waits_is_dropped(
    tmp_path: Path, kind: str, other: dict[str, Any]
) -> None:
    """All topics wait in one log, and Java gives an object that is sent again its first id."""
    first: dict[str, Any] = {"topic": "orders", "body": b"A", "properties": unique(1)}
    first["properties"] |= WAITING[kind]
    sent = [first, first | other]
    for restarts in range(2):
        with EmbeddedBroker(tmp_path) as broker, WireClient(broker.port) as client:
            offsets = [client.send(**each).ext["queueOffset"] for each in sent]
            assert offsets == ["0", "1"]
            assert broker.statistics.copies_dropped == 2 * restarts


def test_another_message_with_the_id_of_one_that_has_left_is_stored(
    client: WireClient, broker: EmbeddedBroker
) -> None:
    """The body of the first one is not there any more."""

    def send(number: int, body: bytes) -> Command:
        return client.send("orders", body, properties=unique(number) | WAITING["half"])

    first = send(1, b"A")
    send(2, b"another one, as the newest stays")
    place = int(first.ext["queueOffset"]), int(first.ext["msgId"][16:], 16)
    end = EndTransactionHeader(
        "producers", *place, TransactionFlag.COMMIT, message_id=unique(1)["UNIQ_KEY"]
    )
    assert client.call(RequestCode.END_TRANSACTION, end.to_ext()).code == 0
    assert broker.statistics.half_messages == 1
    assert send(1, b"B").ext["queueOffset"] == "2"
    assert broker.statistics.half_messages == 2
    assert send(1, b"A").ext["queueOffset"] == "0"
    assert send(1, b"B").ext["queueOffset"] == "2"
    assert broker.statistics.half_messages == 2


def test_another_message_with_the_id_of_one_that_was_trimmed_is_stored(tmp_path: Path) -> None:
    clock, config = ManualClock(), BrokerConfig(retention_ms=1_000)
    with (
        EmbeddedBroker(tmp_path, config=config, clock=clock) as broker,
        WireClient(broker.port) as client,
    ):
        for number in (1, 2):
            client.send("orders", b"A", properties=unique(number))
        client.send("orders", b"B", properties=unique(1))  # its ids are searched from now on
        clock.advance(10_000_000)
        eventually(lambda: broker.statistics.messages_trimmed == 2, "all but the newest expired")
        assert client.send("orders", b"C", properties=unique(1)).ext["queueOffset"] == "3"


def test_copies_are_dropped_after_a_kill_of_the_broker(tmp_path: Path) -> None:
    def send_all(client: WireClient) -> list[str]:
        client.send("orders", b"A", properties=unique("A"))
        client.send_batch("orders", [b"B"], properties=unique("B"))
        client.send("orders", b"C", properties=unique("C") | {"DELAY": "5"})
        half = unique("D") | {"TRAN_MSG": "true", "PGROUP": "producers"}
        client.send("orders", b"D", properties=half)
        return [
            client.send("orders", b"E", properties=unique("E")).ext["queueOffset"],
            client.send("orders", b"F", properties=unique("F")).ext["queueOffset"],
        ]

    path = tmp_path / "broker.db"
    broker = BrokerProcess(path)
    with WireClient(broker.port) as client:
        assert send_all(client) == ["2", "3"]
    broker.kill()
    with BrokerProcess(path) as broker, WireClient(broker.port) as client:
        assert send_all(client) == ["2", "3"]
        assert bodies(client) == [b"A", b"B", b"E", b"F"]
        assert client.max_offset("SCHEDULE_TOPIC_XXXX", 4) == 1


def test_the_window_is_bounded(tmp_path: Path) -> None:
    config = BrokerConfig(duplicate_window=10)
    with EmbeddedBroker(tmp_path, config=config) as broker, WireClient(broker.port) as client:
        for number in range(100):
            client.send("orders", str(number).encode(), properties=unique(number))
        for number in (95, 90, 0):
            client.send("orders", str(number).encode(), properties=unique(number))
        assert broker.statistics.copies_dropped == 2
    with EmbeddedBroker(tmp_path, config=config) as broker, WireClient(broker.port) as client:
        client.send("orders", b"99", properties=unique(99))
        client.send("orders", b"1", properties=unique(1))
        assert broker.statistics.copies_dropped == 1


def test_a_send_that_failed_is_stored_when_it_comes_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker.db") as broker, WireClient(broker.port) as client:
        client.send("orders", b"0")
        broker.limit_file_size(1)
        refused = client.send("orders", b"A" * 100_000, properties=unique(1))
        assert refused.code != 0
        broker.lift_limit()
        assert client.send("orders", b"A" * 100_000, properties=unique(1)).code == 0
        assert len(bodies(client)) == 2
