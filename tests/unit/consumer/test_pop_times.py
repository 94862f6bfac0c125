"""The times that pops carry, at a broker whose clock is another one than the client's
(docs/internals/protocol.md#pop)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq.clock import ManualClock
from ordermq.config import PopConfig, RemotingConfig
from ordermq.consumer.pop.transport import RemotingPop
from ordermq.errors import RequestTimeout
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from ordermq.remoting.pop import PopHeader, PopReplyHeader

QUEUE = MessageQueue("orders", "b", 0)
POLL_MS, TIMEOUT_MS = 1_000, 3_000
HOUR_MS = 3_600_000


class Broker:
    """A broker of RocketMQ that has no messages; fulfils `Connections`.

    Attributes:
        ahead_ms: how far its clock is before that of the client.
        is_ending: it holds no pops.
        asked: how many came.
    """

    def __init__(self, clock: ManualClock, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self.is_ending = False
        self.asked = 0
        self._clock = clock

    @property
    def now_ms(self) -> int:
        return self._clock.wall_ms() + self.ahead_ms

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        self.asked += 1
        header = PopHeader.from_ext(command.ext)
        born_ms = header.born_ms or self.now_ms
        if self.now_ms - born_ms - header.poll_ms > 500:
            told = PopReplyHeader(0, 0, 0)
            return command.reply(ResponseCode.POLLING_TIMEOUT, told.to_ext(), remark="too much")
        held_ms = 0 if self.is_ending else max(born_ms + header.poll_ms - self.now_ms, 0)
        if held_ms > timeout_ms:
            await self._clock.sleep_ms(timeout_ms)
            raise RequestTimeout("no answer in time")
        await self._clock.sleep_ms(held_ms)
        told = PopReplyHeader(self.now_ms, header.invisible_ms, 0)
        return command.reply(ResponseCode.POLLING_TIMEOUT, told.to_ext())


class Member:
    """A member that pops at a broker, on a clock that goes on as it waits."""

    def __init__(self, clock: ManualClock, broker: Broker) -> None:
        self._clock = clock
        config = RemotingConfig(request_timeout_ms=TIMEOUT_MS - POLL_MS)
        routes = SimpleNamespace(master_of=lambda name: name)
        client = SimpleNamespace(clock=clock, config=config, routes=routes, connections=broker)
        pops = PopConfig(pop_poll_ms=POLL_MS)
        self._pop = RemotingPop(
            cast(Any, client), "g", pops, cast(Any, None), is_ordered=True, from_first=True
        )

    def pop(self) -> int:
        """Pop once; return how many ms that took."""
        return asyncio.run(self._pop_once())

    async def _pop_once(self) -> int:
        began_ms = self._clock.now_ms()
        work = self._pop.receive(QUEUE, Subscription.of("orders", "*", None, 1), "attempt")
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            self._clock.advance(10)
        assert task.result() == ()
        return self._clock.now_ms() - began_ms


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    return Broker(clock)


@pytest.fixture
def member(clock: ManualClock, broker: Broker) -> Member:
    return Member(clock, broker)


def is_held(took_ms: int) -> bool:
    return POLL_MS <= took_ms < POLL_MS + 200


def test_a_pop_is_held_as_long_as_it_says_whatever_the_clocks_say() -> None:
    for ahead_ms in (0, 2_000, HOUR_MS, -2_000, -HOUR_MS):
        clock = ManualClock()
        broker = Broker(clock, ahead_ms)
        member = Member(clock, broker)
        assert [is_held(member.pop()) for _ in range(3)] == [True] * 3
        assert broker.asked == 3


def test_a_client_whose_clock_jumps_pops_by_the_brokers(
    clock: ManualClock, broker: Broker, member: Member
) -> None:
    assert is_held(member.pop())
    for jump_ms in (HOUR_MS, -2 * HOUR_MS):
        clock.jump_wall(jump_ms)
        broker.ahead_ms -= jump_ms
        assert is_held(member.pop())
    assert broker.asked == 3


def test_a_brokers_clock_that_is_set_forward_costs_one_request(
    broker: Broker, member: Member
) -> None:
    member.pop()
    broker.ahead_ms = HOUR_MS
    assert member.pop() < 200  # refused for its age; nothing is held back
    assert [is_held(member.pop()) for _ in range(2)] == [True] * 2
    assert broker.asked == 4


def test_a_brokers_clock_that_is_set_back_costs_one_time_out(
    broker: Broker, member: Member
) -> None:
    member.pop()
    broker.ahead_ms = -HOUR_MS
    with pytest.raises(RequestTimeout):
        member.pop()
    assert [is_held(member.pop()) for _ in range(2)] == [True] * 2


def test_a_broker_that_holds_no_pops_is_not_asked_again_at_once(
    broker: Broker, member: Member
) -> None:
    broker.is_ending = True
    assert [is_held(member.pop()) for _ in range(3)] == [True] * 3


def test_a_pop_that_was_under_way_for_long_is_told_by_its_age(
    broker: Broker, member: Member
) -> None:
    # Otherwise a broker that was frozen would lease messages to a client that has given up.
    member.pop()
    born: list[int] = []

    async def request(address: str, command: Command, timeout_ms: int) -> Command:
        born.append(PopHeader.from_ext(command.ext).born_ms)
        return await Broker.request(broker, address, command, timeout_ms)

    broker.request = request  # type: ignore[method-assign]
    before_ms = broker.now_ms
    member.pop()
    assert abs(born[0] - before_ms) < 100
