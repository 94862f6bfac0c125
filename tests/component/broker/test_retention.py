"""Old messages go, a step at a time; readers behind them go on from the oldest one left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store import Store, Write
from ordermq.broker.store.retention import STEP
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import QueueHeader
from ordermq.remoting.pop import (
    BROKERS_TIME,
    BatchAck,
    PopHandle,
    PopHeader,
    PopReplyHeader,
    acks_to_body,
    offsets_of_reply,
)
from tests.component.broker.wire_client import BROKER, WireClient, records
from tests.component.conftest import eventually

KEPT_MS, INTERVAL_MS = 10_000, 1_000


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(retention_ms=KEPT_MS, retention_interval_ms=INTERVAL_MS, durability="os")


def min_offset(client: WireClient, topic: str = "orders", queue_id: int = 0) -> int:
    ext = QueueHeader(topic, queue_id).to_ext()
    return int(client.call(RequestCode.GET_MIN_OFFSET, ext).ext["offset"])


def send(client: WireClient, count: int, queue_id: int = 0, **more: object) -> None:
    started = [
        client.start_send("orders", str(n).encode(), queue_id, **more)  # type: ignore[arg-type]
        for n in range(count)
    ]
    for one in started:
        assert client.wait(one).code == 0


def trimmed(broker: EmbeddedBroker, clock: ManualClock, count: int) -> None:
    """Let the broker look until so many messages are gone."""

    def is_done() -> bool:
        clock.advance(INTERVAL_MS)
        return broker.statistics.messages_trimmed >= count

    eventually(is_done, f"{count} messages are trimmed")
    assert broker.statistics.messages_trimmed == count


def test_old_messages_are_deleted_and_readers_behind_them_are_moved(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    send(client, 5)
    clock.advance(KEPT_MS)
    send(client, 5)
    assert min_offset(client) == 0
    clock.advance(1)
    trimmed(broker, clock, 5)
    assert min_offset(client) == 5
    behind = client.pull("orders", 2)
    assert behind.code == ResponseCode.PULL_OFFSET_MOVED
    assert behind.ext["nextBeginOffset"] == behind.ext["minOffset"] == "5"
    assert [m.queue_offset for m in records(client.pull("orders", 5).body)] == [5, 6, 7, 8, 9]


def test_the_newest_message_of_a_queue_is_kept_and_offsets_continue(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    send(client, 3)
    clock.advance(10 * KEPT_MS)
    trimmed(broker, clock, 2)
    assert min_offset(client) == 2
    send(client, 1)
    assert client.max_offset("orders") == 4


def test_deleted_messages_stay_deleted_after_a_restart_and_no_offset_is_reused(
    tmp_path: Path, clock: ManualClock, broker_config: BrokerConfig
) -> None:
    path = tmp_path / "kept.db"
    begin = partial(EmbeddedBroker, path, config=broker_config, clock=clock)
    with begin() as broker, WireClient(broker.port) as client:
        client.round_trip()
        send(client, 4)
        clock.advance(10 * KEPT_MS)
        trimmed(broker, clock, 3)
    with begin() as broker, WireClient(broker.port) as client:
        assert (min_offset(client), client.max_offset("orders")) == (3, 4)


def test_without_a_limit_every_message_is_kept(tmp_path: Path, clock: ManualClock) -> None:
    with EmbeddedBroker(clock=clock) as broker, WireClient(broker.port) as client:
        client.round_trip()
        send(client, 3)
        clock.advance(365 * 86_400_000)
        client.round_trip()
        assert min_offset(client) == 0
        assert broker.statistics.messages_trimmed == 0


def test_pending_messages_are_not_trimmed(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    for name in ("DELAY", "TIMER_DELAY_MS"):
        send(client, 2, properties={name: "18" if name == "DELAY" else "7200000"})
    send(client, 2, properties={"TRAN_MSG": "true", "PGROUP": "pg"}, sys_flag=4)
    send(client, 2, 1)
    clock.advance(3_600_000)
    trimmed(broker, clock, 1)
    assert broker.statistics.half_messages == 2
    assert broker.statistics.timed_messages == 2
    clock.advance(3_600_000)
    waiting = client.start_pull("orders", 0, suspend_ms=100_000_000)
    assert records(client.wait(waiting, clock).body)


def test_trimming_is_done_in_small_steps_between_other_writes(
    client: WireClient,
    clock: ManualClock,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts: list[int] = []
    submit: Callable[[Store, Write], None] = Store.submit

    def watched(store: Store, write: Write) -> None:
        deletes = [each for each in write.statements if each.sql.startswith("DELETE FROM log_")]
        cuts.extend(int(str(each.parameters[0])) for each in deletes)
        submit(store, write)

    monkeypatch.setattr(Store, "submit", watched)
    send(client, 3 * STEP)
    clock.advance(2 * KEPT_MS)
    trimmed(broker, clock, 3 * STEP - 1)
    assert cuts == [STEP, 2 * STEP, 3 * STEP - 1]


def test_a_clock_that_jumps_forward_for_a_moment_deletes_nothing_and_one_that_stays_is_believed(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    year_ms = 365 * 86_400_000
    send(client, 5)
    clock.jump_wall(year_ms)
    for _ in range(5):
        clock.advance(INTERVAL_MS)
        client.round_trip()
    clock.jump_wall(-year_ms)
    assert min_offset(client) == 0
    clock.advance(KEPT_MS)
    trimmed(broker, clock, 4)
    # The host had booted without the time, and was told it now.
    clock.jump_wall(year_ms)
    send(client, 5)
    clock.advance(KEPT_MS)
    trimmed(broker, clock, 5)
    clock.advance(3_600_000)
    trimmed(broker, clock, 9)


class Popping:
    """Pops queue 0 of the topic as one group."""

    def __init__(self, client: WireClient, is_ordered: bool) -> None:
        self._client = client
        self._is_ordered = is_ordered

    def start(self, most: int = 32, expression: str | None = None, poll_ms: int = 0) -> Command:
        header = PopHeader(
            "group", "orders", 0, most, 60_000, poll_ms, BROKERS_TIME, 0,
            expression=expression, order=self._is_ordered, fenced=True,
        )  # fmt: skip
        return self._client.start(RequestCode.POP_MESSAGE, header.to_ext())

    def pop(self, most: int = 32) -> tuple[int | None, tuple[int, ...]]:
        """Return how many messages expired, and the offsets that were leased."""
        answer = self._client.wait(self.start(most))
        assert answer.code == ResponseCode.SUCCESS, answer
        reply = PopReplyHeader.from_ext(answer.ext)
        (part,) = offsets_of_reply(reply)
        if self._is_ordered:
            handle = PopHandle(part.start, reply.pop_ms, 60_000, 999, "0", BROKER, 0)
            body = acks_to_body(BROKER, [BatchAck("group", "orders", handle, part.offsets)])
            code = RequestCode.BATCH_ACK_MESSAGE
            assert self._client.call(code, {}, body).code == ResponseCode.SUCCESS
        return reply.expired, part.offsets


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_pop_says_once_how_many_messages_expired_before_it(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker, is_ordered: bool
) -> None:
    group = Popping(client, is_ordered)
    send(client, 5)
    assert group.pop(most=2) == (None, (0, 1))
    clock.advance(KEPT_MS)
    send(client, 5)
    clock.advance(1)
    trimmed(broker, clock, 5)
    assert group.pop(most=2) == (3, (5, 6))
    assert group.pop() == (None, (7, 8, 9))


def test_a_pop_that_finds_nothing_it_wants_says_what_expired_all_the_same(
    client: WireClient, clock: ManualClock, broker: EmbeddedBroker
) -> None:
    group = Popping(client, is_ordered=True)
    send(client, 5)
    group.pop(most=2)
    clock.advance(KEPT_MS)
    send(client, 5)
    clock.advance(1)
    trimmed(broker, clock, 5)
    answer = client.wait(group.start(expression="other", poll_ms=1_000), clock)
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert PopReplyHeader.from_ext(answer.ext).expired == 3
    send(client, 1)
    assert group.pop() == (None, (10,))


def test_a_popped_message_that_expired_before_its_repetition_is_told(
    client: WireClient,
    clock: ManualClock,
    broker: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Popping(client, is_ordered=False)
    send(client, 2)
    assert group.pop() == (None, (0, 1))
    clock.advance(KEPT_MS)
    send(client, 1)
    clock.advance(1)
    trimmed(broker, clock, 2)

    def is_told() -> bool:
        clock.advance(INTERVAL_MS)
        return sum("before group group was done" in text for text in caplog.messages) == 2

    eventually(is_told, "both are told")


class TestBySize:
    LIMIT = 700_000  # of 1.2 MB that the test sends

    @pytest.fixture
    def broker_config(self) -> BrokerConfig:
        return BrokerConfig(
            retention_bytes=self.LIMIT, retention_interval_ms=INTERVAL_MS, durability="os"
        )

    def test_the_oldest_messages_of_all_queues_go_while_the_store_is_too_large(
        self, client: WireClient, clock: ManualClock, broker: EmbeddedBroker
    ) -> None:
        body = b"x" * 1_000
        for queue_id in (1, 0, 2):
            started = [client.start_send("orders", body, queue_id) for _ in range(300)]
            for one in started:
                client.wait(one)
            clock.advance(10)

        def is_done() -> bool:
            clock.advance(INTERVAL_MS)
            return broker.statistics.messages_trimmed >= 299

        eventually(is_done, "the oldest are trimmed")
        eventually(lambda: min_offset(client, queue_id=0) > 0, "the next oldest too")
        firsts = [min_offset(client, queue_id=queue_id) for queue_id in range(3)]
        assert firsts[1] == 299  # its oldest first, and its newest message stays
        assert 0 < firsts[0] <= 299
        assert firsts[2] == 0

    def test_a_store_small_enough_is_left_alone(
        self, client: WireClient, clock: ManualClock, broker: EmbeddedBroker
    ) -> None:
        send(client, 50)
        for _ in range(3):
            clock.advance(INTERVAL_MS)
            client.round_trip()
        assert min_offset(client) == 0
