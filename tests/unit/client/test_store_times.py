"""Offsets by time: whatever a broker answers, the messages decide
(docs/internals/semantics.md#offsets-by-time)."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ordermq.client.store_times import offset_at_time
from ordermq.errors import BrokerError
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import TOOLS_GROUP
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.headers import PullHeader, PullReplyHeader
from ordermq.wall_time import wall_ms_of

QUEUE = MessageQueue("orders", "b", 3)


class Broker:
    """A queue as pulls show it: the store times of its messages by offset, perhaps with gaps."""

    def __init__(self, times: dict[int, int], first: int, end: int, hint: int) -> None:
        self.times, self.first, self.end, self.hint = times, first, end, hint
        self.pulls: list[tuple[str, int]] = []
        self.resets: dict[str, int] = {}  # told to the next pull of a group, once
        self.denied: set[str] = set()  # groups; "" is the request for an offset by time

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        if "" in self.denied:
            raise BrokerError("denied", response_code=ResponseCode.NO_PERMISSION)
        return self.hint

    async def pull(
        self, address: str, header: PullHeader, timeout_ms: int
    ) -> tuple[int, PullReplyHeader, bytes]:
        at = header.queue_offset
        self.pulls.append((header.group, at))
        if header.group in self.denied:
            raise BrokerError("denied", response_code=ResponseCode.NO_PERMISSION)
        code, following = self._answer(header.group, at)
        return code, PullReplyHeader(following, self.first, self.end), b""

    def _answer(self, group: str, at: int) -> tuple[int, int]:
        if group in self.resets:
            return ResponseCode.PULL_OFFSET_MOVED, self.resets.pop(group)
        if at < self.first or at > self.end:
            return ResponseCode.PULL_OFFSET_MOVED, self.first if at < self.first else self.end
        if at == self.end:
            return ResponseCode.PULL_NOT_FOUND, at
        if at not in self.times:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, at + 1
        return ResponseCode.SUCCESS, at + 1

    def batch(self, queue: Any, body: bytes, tags: Any, offset: int, following: int) -> Any:
        return [SimpleNamespace(store_timestamp_ms=self.times[offset])]

    def find(self, timestamp_ms: int, group: str = "g") -> int:
        client = SimpleNamespace(
            api=self,
            routes=SimpleNamespace(master_of=lambda name: "127.0.0.1:1"),
            config=SimpleNamespace(offset_timeout_ms=5_000),
        )
        return asyncio.run(offset_at_time(client, group, QUEUE, timestamp_ms))  # type: ignore[arg-type]


@st.composite
def queues(draw: st.DrawFn) -> tuple[dict[int, int], int, int]:
    first = draw(st.integers(0, 50))
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=80))
    times, at, time_ms = {}, first, 1_000
    for offset_step, time_step in steps:
        time_ms += time_step
        times[at] = time_ms
        at += offset_step
    return times, first, at


@given(queues(), st.integers(-1, 300), st.integers(990, 1_200))
@example((dict.fromkeys(range(200), 1_000), 0, 200), 166, 1_000)  # the middle of a millisecond
@example(({0: 1_000, 1: 1_001}, 0, 2), 1, 1_005)  # the last message instead of the end
@example(({}, 0, 0), 0, 1_000)
@example(({}, 7, 7), 0, 1_000)  # all expired
def test_no_message_from_a_time_on_is_left_out_whatever_a_broker_answers(
    queue: tuple[dict[int, int], int, int], hint: int, timestamp_ms: int
) -> None:
    times, first, end = queue
    found = Broker(times, first, end, hint).find(timestamp_ms)
    assert first <= found <= end
    # In a gap every offset is as good as the next message's.
    assert [at for at in times if at >= found] == [
        at for at, stored_ms in times.items() if stored_ms >= timestamp_ms
    ]


def test_a_right_answer_costs_two_pulls_and_a_wrong_one_few() -> None:
    times = {at: at // 100 for at in range(1_000_000)}
    right = bisect_left(range(1_000_000), 5_000, key=lambda at: at // 100)
    broker = Broker(times, 0, 1_000_000, right)
    assert broker.find(5_000) == right == 500_000
    assert len(broker.pulls) == 2
    for hint in (right - 1, right + 60, 0, 999_999, 5_000_000):
        broker = Broker(times, 0, 1_000_000, hint)
        assert broker.find(5_000) == right
        assert len(broker.pulls) <= 42


def test_the_search_takes_no_reset_that_a_member_must_hear_of() -> None:
    broker = Broker({at: at for at in range(100)}, 0, 100, 50)
    broker.resets["g"] = 7
    assert broker.find(50) == 50
    assert {group for group, _ in broker.pulls} == {TOOLS_GROUP}
    assert broker.resets == {"g": 7}


def test_an_account_that_may_use_its_group_only_searches_with_that() -> None:
    broker = Broker({at: at for at in range(100)}, 0, 100, 50)
    broker.denied = {"", TOOLS_GROUP}
    broker.resets["g"] = 7  # of this one the search hears, and it is no place in the queue
    assert broker.find(50) == 50
    broker.denied.add("g")
    with pytest.raises(BrokerError, match="denied"):
        broker.find(50)


def test_a_time_is_whole_milliseconds_and_not_a_float() -> None:
    for millisecond in range(1_000):
        moment = datetime(2026, 11, 25, 13, 0, 0, millisecond * 1_000, UTC)
        assert wall_ms_of(moment) % 1_000 == millisecond
    shanghai = timezone(timedelta(hours=8))
    assert wall_ms_of(datetime(1970, 1, 1, 8, 0, 0, 2_999, shanghai)) == 2
