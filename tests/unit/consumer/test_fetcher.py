"""The pull loop of one queue, and what ends it (docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ordermq.client.broker_api import MAX_PAST_END, BrokerApi
from ordermq.config import PullConfig, RemotingConfig
from ordermq.consumer.fetch.fetcher import PullLoop
from ordermq.consumer.fetch.pull_path import QueuePulls
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks, QueueState
from ordermq.errors import ProtocolError, RequestTimeout
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageBatch
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.framing import Framing, PullFrames
from ordermq.remoting.headers import PullHeader
from ordermq.remoting.response_futures import ResponseFuture

from .batches import QUEUE, batch

HEADER = PullHeader("G", QUEUE.topic, QUEUE.queue_id, 0, 32, PullFlag.SUSPEND, subscription="*")


class Line:
    """Stands for a connection: keeps what is asked."""

    def __init__(self) -> None:
        self.namespace = ""
        self.is_writable = True
        self.asked: list[tuple[int, bytes]] = []

    def ask(self, opaque: int, frame: bytes, waiting: ResponseFuture, timeout_ms: int) -> None:
        assert timeout_ms == 30_000
        waiting.deadline_ms = 31_000
        self.asked.append((opaque, frame))

    def after_read(self, action: Callable[[], object]) -> None:
        action()


class Pulls:
    """A pull loop from offset 10 on, driven by hand; use within a running event loop."""

    def __init__(self, line: Line | None = None, *, is_filtered: bool = False) -> None:
        self.line = line or Line()
        self.frames = PullFrames(HEADER, Framing(RemotingConfig()))
        self.pulled: list[int] = []
        self.max_offsets: list[int] = []
        self.submitted: list[AssignedQueue] = []
        self.has_room = True
        self.assigned = AssignedQueue(
            QUEUE,
            "G",
            Lease(7, 50_000, True),
            10,
            QueueCallbacks(
                on_lease_lost=lambda *_: None,
                on_drained=lambda *_: None,
                on_room=lambda *_: None,
                on_idle=lambda: None,
            ),
        )
        self.generation = self.assigned.generation
        self.loop = PullLoop(
            BrokerApi(cast(Any, None), RemotingConfig(), "me"),
            cast(Any, self.line),
            QueuePulls(
                self.assigned,
                cast(Any, self),
                self.frames,
                PullConfig(),
                10,
                (),
                broker_id=0,
                is_filtered=is_filtered,
                window=None,
            ),
        )
        self.loop.start()

    # PullTarget

    def accept(
        self, found: MessageBatch, next_offset: int, max_offset: int
    ) -> Callable[[], object] | None:
        self.max_offsets.append(max_offset)
        self.pulled.append(len(found))
        if self.assigned.accept(self.generation, found, next_offset):
            return lambda: self.submitted.append(self.assigned)
        return None

    def may_pull(self) -> bool:
        assigned = self.assigned
        is_held = assigned.generation == self.generation and assigned.state is QueueState.ACTIVE
        return is_held and self.has_room

    def answer(self, start: int, end: int, **fields: str) -> Command:
        """Messages start..end - 1."""
        ext = {"nextBeginOffset": str(end), "suggestWhichBrokerId": "0"} | fields
        found = Command(ResponseCode.SUCCESS, ext, bytes(batch(range(start, end)).body))
        self.loop.answered(found)
        return found

    @property
    def offsets_asked(self) -> list[int]:
        """Offsets of the pulls; each frame must be what its offset asks for."""
        offsets = []
        for opaque, frame in self.line.asked:
            (offset,) = (n for n in range(100) if self.frames.frame(n, opaque) == frame)
            offsets.append(offset)
        return offsets


def on_a_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_each_answer_is_buffered_and_the_next_pull_sent_as_it_is_read() -> None:
    @on_a_loop
    def _() -> None:
        pulls = Pulls()
        for start in (10, 20, 30):
            pulls.answer(start, start + 10, **({"maxOffset": "99"} if start == 10 else {}))
        assert pulls.offsets_asked == [10, 20, 30, 40]
        assert pulls.assigned.process_queue.message_count == 30
        assert pulls.assigned.next_pull_offset == 40
        assert pulls.submitted == [pulls.assigned], "it was idle once"
        assert pulls.pulled == [10, 10, 10]
        assert pulls.max_offsets == [99, 30, 40], "told, or else at least what was pulled"
        assert not pulls.loop.is_over
        assert pulls.loop.asked_ms == 1_000


@pytest.mark.parametrize(
    "answer",
    [
        Command(ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "10"}),
        Command(ResponseCode.PULL_OFFSET_MOVED, {"nextBeginOffset": "99"}),
        Command(ResponseCode.NO_PERMISSION, {}, remark="no"),
        Command(ResponseCode.SUCCESS, {"nextBeginOffset": "20"}, b""),
        Command(ResponseCode.SUCCESS, {}, bytes(batch(range(10, 20)).body)),
        Command(ResponseCode.SUCCESS, {"nextBeginOffset": "-1"}, bytes(batch(range(9)).body)),
        Command(
            ResponseCode.SUCCESS,
            {"nextBeginOffset": "20", "suggestWhichBrokerId": "1"},
            bytes(batch(range(10, 20)).body),
        ),
        Command(
            ResponseCode.SUCCESS,
            {"nextBeginOffset": "20", "offsetDelta": "0"},
            bytes(batch(range(10, 20)).body),
        ),
        Command(
            ResponseCode.SUCCESS,
            {"nextBeginOffset": str(21 + MAX_PAST_END), "maxOffset": "20"},
            bytes(batch(range(10, 20)).body),
        ),
        Command(ResponseCode.SUCCESS, {"nextBeginOffset": "9" * 19}, b""),
        Command(ResponseCode.SUCCESS, {"nextBeginOffset": "\u0662\u0660"}, b""),
        Command(ResponseCode.SUCCESS, {"nextBeginOffset": "20", "maxOffset": "-7"}, b""),
    ],
)
def test_an_answer_that_is_more_than_messages_is_left_to_who_awaits_the_end(
    answer: Command,
) -> None:
    @on_a_loop
    def _() -> None:
        pulls = Pulls()
        pulls.loop.answered(answer)
        assert pulls.loop.ended.result() is answer
        assert pulls.loop.offset == 10
        assert pulls.assigned.process_queue.message_count == 0
        assert pulls.offsets_asked == [10]


@pytest.mark.parametrize("end", ["lapse", "revoke", "no room", "not writable"])
def test_a_pull_loop_ends_where_nothing_more_may_be_pulled(end: str) -> None:
    @on_a_loop
    def _() -> None:
        pulls = Pulls()
        pulls.answer(10, 20)
        if end == "lapse":
            pulls.assigned.lose_lease("a test's own")
        elif end == "revoke":
            pulls.assigned.revoke()
        elif end == "no room":
            pulls.has_room = False
        else:
            pulls.line.is_writable = False
        pulls.answer(20, 30)
        assert pulls.loop.ended.result() is None
        assert pulls.offsets_asked == [10, 20]
        held = 20 if end in ("no room", "not writable") else 10 if end == "revoke" else 0
        assert pulls.assigned.process_queue.message_count == held


def test_a_torn_body_and_a_failed_request_reach_who_awaits_the_end() -> None:
    @on_a_loop
    def _() -> None:
        torn, late = Pulls(), Pulls()
        body = bytes(batch(range(10, 20)).body)
        torn.loop.answered(Command(0, {"nextBeginOffset": "20"}, body[:-1]))
        assert isinstance(torn.loop.ended.exception(), ProtocolError)
        late.loop.failed(RequestTimeout("no answer"))
        assert isinstance(late.loop.ended.exception(), RequestTimeout)
        assert torn.assigned.next_pull_offset == late.assigned.next_pull_offset == 10


@pytest.mark.parametrize("change", ["offset", "body", "queue id", "crc"])
def test_nothing_of_an_answer_with_a_flipped_bit_is_buffered(change: str) -> None:
    @on_a_loop
    def _() -> None:
        pulls = Pulls()
        body = bytearray(batch(range(10, 20)).body)
        body[{"queue id": 14, "offset": 22, "crc": 9, "body": 88}[change]] ^= 4
        pulls.loop.answered(Command(0, {"nextBeginOffset": "20", "maxOffset": "20"}, bytes(body)))
        assert isinstance(pulls.loop.ended.exception(), ProtocolError)
        assert pulls.assigned.process_queue.message_count == 0
        assert pulls.assigned.next_pull_offset == pulls.loop.offset == 10


def test_without_a_filter_the_next_pull_is_behind_the_last_record() -> None:
    @on_a_loop
    def _() -> None:
        told, filtered = Pulls(), Pulls(is_filtered=True)
        for pulls in (told, filtered):
            pulls.loop.answered(
                Command(
                    0,
                    {"nextBeginOffset": "52", "maxOffset": "60"},
                    bytes(batch(range(10, 20)).body),
                )
            )
        assert told.offsets_asked == [10, 20], "the offset of the header is covered by nothing"
        assert filtered.offsets_asked == [10, 52]


def test_what_comes_after_the_end_changes_nothing() -> None:
    @on_a_loop
    def _() -> None:
        pulls = Pulls()
        pulls.loop.ended.cancel()
        pulls.answer(10, 20)
        pulls.loop.failed(RequestTimeout("no answer"))
        assert pulls.loop.is_over
        assert pulls.assigned.process_queue.message_count == 0
        assert pulls.offsets_asked == [10]
