"""Windows of ids, filled from the log (docs/internals/semantics.md#de-duplication)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from ordermq.client.broker_api import BrokerApi
from ordermq.config import PullConfig, RemotingConfig
from ordermq.consumer.fetch.copy_filter import NoCopyFilter, WindowFilter, copy_filter
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.errors import ProtocolError, RequestTimeout
from ordermq.events import NoHistory
from ordermq.leases.lease import Lease
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import OFFSET_RESET, PullFlag, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.headers import PullHeader

from .batches import QUEUE, batch

HEADER = PullHeader(
    "G", QUEUE.topic, 0, 0, 32, PullFlag.SUSPEND | PullFlag.SUBSCRIPTION, subscription="*"
)


class Log:
    """Stands for a broker with messages of these ids, from offset `first` on."""

    def __init__(self, ids: str, first: int = 0) -> None:
        self.ids = {first + place: name for place, name in enumerate(ids)}
        self.first = first
        self.most = 3  # messages of an answer, whatever is asked for
        self.asked: list[tuple[int, int]] = []  # offset and messages of each pull
        self.before_answer: Callable[[], object] = lambda: None
        self.answers: list[Command] = []  # given first, instead

    # Connections, and the connection itself.

    async def writable(self, address: str) -> Log:
        assert address == "here"
        return self

    def explained(self, answer: Command) -> Command:
        return answer

    async def request(self, command: Command, timeout_ms: int) -> Command:
        assert timeout_ms == 30_000
        assert int(command.ext["sysFlag"]) == PullFlag.SUBSCRIPTION, "it waits for nothing"
        offset, count = int(command.ext["queueOffset"]), int(command.ext["maxMsgNums"])
        self.asked.append((offset, count))
        self.before_answer()
        if self.answers:
            return self.answers.pop(0)
        ends = {"minOffset": str(self.first), "maxOffset": str(max(self.ids) + 1)}
        if offset < self.first:
            ends["nextBeginOffset"] = str(self.first)
            return Command(ResponseCode.PULL_OFFSET_MOVED, ends)
        found = [each for each in self.ids if each >= offset][: self.most]
        ends["nextBeginOffset"] = str(found[-1] + 1)
        return Command(ResponseCode.SUCCESS, ends, batch(found, ids=self.ids).body)


class Filtered:
    """A queue held from an offset on, and the filter of a window before it."""

    def __init__(self, log: Log, start: int, size: int) -> None:
        self.log = log
        callbacks = QueueCallbacks(*[lambda *_: None] * 3, lambda: None)
        self.assigned = AssignedQueue(QUEUE, "G", Lease(7, 50_000, True), start, callbacks)
        self.statistics = ConsumerStatistics()
        api = BrokerApi(cast(Any, log), RemotingConfig(), "me")
        made = copy_filter(
            PullConfig(deduplicate=size),
            api,
            self.assigned,
            EventRecorder(NoHistory(), "G"),
            self.statistics,
        )
        assert isinstance(made, WindowFilter)
        self.filter = made

    async def prepare(self) -> Any:
        return await self.filter.prepare("here", HEADER, ())

    def pull(self, start: int, end: int) -> list[int]:
        """The offsets that are new in the buffer after an answer with start..end - 1."""
        buffered = self.assigned.process_queue
        before = buffered.message_count
        answer = batch(range(start, end), ids=self.log.ids)
        self.filter.accept(self.assigned.generation, answer, end)
        assert buffered.message_count == before + len(answer)
        return list(answer.columns("offsets")["offsets"])


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_the_messages_before_the_start_are_read_once_per_generation() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABCDEFGHIJADKXE")
        queue = Filtered(log, start=10, size=8)
        assert await queue.prepare() is None
        assert log.asked == [(2, 8), (5, 5), (8, 2)]
        assert queue.pull(10, 12) == [10], "D is 8 offsets behind, A is 10"
        assert await queue.prepare() is None
        assert len(log.asked) == 3, "the window is right"
        assert queue.pull(12, 15) == [12, 13, 14]
        assert queue.statistics["copies_dropped"] == 1
        assert queue.assigned.reposition(queue.assigned.generation, 4)
        log.asked.clear()
        await queue.prepare()
        assert log.asked == [(0, 4), (3, 1)]
        assert queue.pull(4, 7) == [4, 5, 6]


def test_nothing_is_read_before_the_first_message() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABA")
        queue = Filtered(log, start=0, size=8)
        await queue.prepare()
        assert log.asked == []
        assert queue.pull(0, 3) == [0, 1]


def test_a_log_that_begins_later_is_read_from_there() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABCAB", first=20)
        queue = Filtered(log, start=23, size=100)
        await queue.prepare()
        assert log.asked == [(0, 23), (20, 3)]
        assert queue.pull(23, 25) == []
        assert queue.assigned.next_pull_offset == queue.assigned.done_offset == 25


def test_an_answer_beyond_the_start_notes_nothing_of_it() -> None:
    """With a filter, the broker looks for so many messages that match, wherever they are."""

    @on_a_loop
    async def _() -> None:
        log = Log("ABAB")
        log.most = 100
        queue = Filtered(log, start=1, size=8)
        await queue.prepare()
        assert queue.pull(1, 4) == [1]


def test_a_reset_that_the_broker_tells_only_once_is_passed_on() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABCD")
        queue = Filtered(log, start=3, size=8)
        ends = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "4"}
        log.answers.append(Command(ResponseCode.PULL_OFFSET_MOVED, ends, remark=OFFSET_RESET))
        moved = await queue.prepare()
        assert moved.next_begin_offset == 1
        assert await queue.prepare() is None
        assert log.asked == [(0, 3), (0, 3)], "filled only now"


def test_a_queue_that_is_lost_meanwhile_reads_no_further() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABCDEFGHI")
        queue = Filtered(log, start=9, size=9)
        log.before_answer = lambda: queue.assigned.lose_lease("a test")
        await queue.prepare()
        assert log.asked == [(0, 9)]


@pytest.mark.parametrize("error", [RequestTimeout("late", address="here"), None])
def test_after_an_error_the_window_is_filled_anew(error: Exception | None) -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("ABCDEFGHIA")
        queue = Filtered(log, start=9, size=9)

        def fail() -> None:
            if len(log.asked) == 2:
                if error is not None:
                    raise error
                log.answers.append(
                    Command(ResponseCode.SUCCESS, {"nextBeginOffset": "9"}, b"no record")
                )

        log.before_answer = fail
        with pytest.raises(RequestTimeout if error else ProtocolError):
            await queue.prepare()
        await queue.prepare()
        assert log.asked == [(0, 9), (3, 6), (0, 9), (3, 6), (6, 3)]
        assert queue.pull(9, 10) == []


def test_an_answer_of_an_old_generation_counts_nothing() -> None:
    @on_a_loop
    async def _() -> None:
        log = Log("AA")
        queue = Filtered(log, start=0, size=9)
        await queue.prepare()
        old = queue.assigned.generation
        assert queue.assigned.reposition(old, 0)
        assert not queue.filter.accept(old, batch(range(2), ids=log.ids), 2)
        assert queue.statistics["copies_dropped"] == 0
        assert queue.assigned.next_pull_offset == 0
        await queue.prepare()
        assert queue.pull(0, 2) == [0]


@pytest.mark.parametrize(
    ("topic", "size"), [("T", 0), ("%RETRY%G", 100), ("%DLQ%G", 100)], ids=lambda each: str(each)
)
def test_a_queue_without_a_window_buffers_as_it_is(topic: str, size: int) -> None:
    callbacks = QueueCallbacks(*[lambda *_: None] * 3, lambda: None)
    queue = MessageQueue(topic, "b", 0)
    assigned = AssignedQueue(queue, "G", Lease(7, 50_000, True), 0, callbacks)
    made = copy_filter(
        PullConfig(deduplicate=size),
        cast(Any, None),
        assigned,
        EventRecorder(NoHistory(), "G"),
        ConsumerStatistics(),
    )
    assert isinstance(made, NoCopyFilter)
    assert made.accept == assigned.accept, "not one call more"
