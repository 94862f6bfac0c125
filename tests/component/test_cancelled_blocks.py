"""A task that is cancelled in an `async with` block of a producer or consumer, at any moment, and
blocks that cannot begin: nothing of ours is left.

Each case is run again and again, cancelled one place later each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest

from ordermq import AsyncConsumer, AsyncProducer, Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, RouteError
from tests.component.conftest import eventually
from tests.component.grpc_server import grpc_server
from tests.component.interruption import HOUSE
from tests.component.test_async_consumer import CancelledAt, awaited
from tests.component.test_interrupted_blocks import is_ours
from tests.component.whole_proxy import WholeProxy
from tests.silent_addresses import blackholed, dead

TOPIC = "orders"
LIMIT_S = 20.0
PLACES = 60  # of each kind's sweep through the threads that start and close
Use = Callable[[str], contextlib.AbstractAsyncContextManager[Any]]
COMMON: dict[str, Any] = {"pop_poll_ms": 100}


def listening(at: str, **settings: Any) -> AsyncConsumer:
    consumer = AsyncConsumer("tasks", TOPIC, name_servers=at, **COMMON | settings)

    @consumer.orderly
    async def listen(messages: Any, context: Any) -> None:
        await asyncio.sleep(0)

    return consumer


@contextlib.asynccontextmanager
async def producing(at: str) -> AsyncIterator[None]:
    async with AsyncProducer("tasks", name_servers=at) as producer:
        await producer.send(Message(TOPIC, b"x"), sharding_key="k")
        yield


@contextlib.asynccontextmanager
async def iterating(at: str, **settings: Any) -> AsyncIterator[None]:
    async with AsyncConsumer("tasks", TOPIC, name_servers=at, **COMMON | settings) as consumer:
        async for batch in consumer.batches(timeout_ms=50):
            await batch.commit()
        yield


USES: dict[str, Use] = {
    "producer": producing,
    "listener": listening,
    "iteration": iterating,
    "listener that pops": lambda at: listening(at, consume_mode="pop"),
    "iteration that pops": lambda at: iterating(at, consume_mode="pop"),
    "grpc producer": producing,
    "grpc listener": listening,
    "grpc iteration": iterating,
}


class Servers:
    """The broker of a test, or its proxy; says how many connections are open."""

    def __init__(self, at: str, connections: Callable[[], int]) -> None:
        self.at = at
        self.connections = connections


@contextlib.asynccontextmanager
async def servers_for(name: str, broker: EmbeddedBroker) -> AsyncIterator[Servers]:
    if not name.startswith("grpc "):
        before = broker.statistics.connections
        yield Servers(broker.name_servers, lambda: broker.statistics.connections - before)
        return
    proxy = WholeProxy()
    proxy.put(b"x")
    async with grpc_server(proxy) as (address, connections):
        yield Servers(f"grpc://{address}", lambda: sum(each.is_open for each in connections))


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if is_ours(thread)}


async def nothing_is_left(servers: Servers, threads: set[threading.Thread], where: str) -> None:
    end = time.monotonic() + LIMIT_S
    while left := ours() - threads or servers.connections():
        assert time.monotonic() < end, f"{where}: left {left}"
        await asyncio.sleep(0.005)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, f"{where}: {tasks}"


async def cancel_close(consumer: AsyncConsumer) -> None:
    """Cancel a close behind the end of its queues; it ends far sooner than what is held for it."""
    closing = asyncio.ensure_future(consumer.close())
    while consumer.assigned_queues():
        await asyncio.sleep(0.001)
    closing.cancel()
    await asyncio.wait([closing], timeout=2.0)
    assert closing.cancelled()


def sweep(name: str, broker: EmbeddedBroker, cancel: Callable[..., Any]) -> None:
    async def main() -> None:
        async with servers_for(name, broker) as servers:
            async with USES[name](servers.at):  # imports what a first start does
                pass
            threads = ours()
            await nothing_is_left(servers, threads, "without a cancellation")
            await cancel(USES[name], servers, threads)

    with Producer("first", name_servers=broker.name_servers) as producer:
        producer.send(Message(TOPIC, b"x"), sharding_key="k")
        asyncio.run(main())


async def used(use: Use, at: str) -> None:
    async with use(at):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", USES)
def test_a_block_that_is_cancelled_at_any_await_leaves_nothing(
    broker: EmbeddedBroker, name: str
) -> None:
    async def cancel(use: Use, servers: Servers, threads: set[threading.Thread]) -> None:
        at, was_cancelled = 0, True
        while was_cancelled:
            at += 1
            work = CancelledAt(used(use, servers.at), at)
            task = asyncio.ensure_future(awaited(work))
            await asyncio.wait([task], timeout=LIMIT_S)
            was_cancelled = work.was_cancelled
            assert task.done(), f"hangs, cancelled at await {at}"
            assert task.cancelled() == was_cancelled, f"at await {at}"
            await nothing_is_left(servers, threads, f"cancelled at await {at}")
        assert at > 3

    sweep(name, broker, cancel)


class CancelsAtPlace:
    """Cancels a task while a thread that starts or closes its client is at its `at`-th call."""

    def __init__(self, task: asyncio.Task[Any], at: int) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._left = at
        self.place = ""

    def __enter__(self) -> CancelsAtPlace:
        threading.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(HOUSE):
            return
        if threading.current_thread().name != "ordermq-call":
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            is_told = threading.Event()
            self._loop.call_soon_threadsafe(self._cancel, is_told)
            is_told.wait(LIMIT_S)

    def _cancel(self, is_told: threading.Event) -> None:
        self._task.cancel()
        # Behind the step of the task that follows from it.
        self._loop.call_soon(self._loop.call_soon, is_told.set)


@pytest.mark.parametrize("name", USES)
def test_a_block_that_is_cancelled_while_its_thread_works_leaves_nothing(
    broker: EmbeddedBroker, name: str
) -> None:
    async def cancel(use: Use, servers: Servers, threads: set[threading.Thread]) -> None:
        at, stride, place = 1, 1, "begun"
        while place:
            task = asyncio.ensure_future(used(use, servers.at))
            with CancelsAtPlace(task, at) as cancels:
                await asyncio.wait([task], timeout=LIMIT_S)
            place = cancels.place
            assert task.done(), f"hangs, cancelled at {place}"
            assert task.cancelled() == bool(place), f"{place}: {task}"
            await nothing_is_left(servers, threads, f"cancelled at {place}")
            at += stride
            stride = max(at // PLACES, 1) * 7
        assert at > 10

    sweep(name, broker, cancel)


@pytest.mark.parametrize("name", USES)
def test_an_exception_in_a_block_leaves_nothing(broker: EmbeddedBroker, name: str) -> None:
    async def fail(use: Use, servers: Servers, threads: set[threading.Thread]) -> None:
        with pytest.raises(ValueError, match="in the block"):
            async with use(servers.at):
                raise ValueError("in the block")
        await nothing_is_left(servers, threads, "raised in the block")

    sweep(name, broker, fail)


CONSUMERS = {"listener": listening, "iteration": iterating}


@pytest.mark.parametrize("use", CONSUMERS)
@pytest.mark.parametrize("scheme", ["", "grpc://"])
def test_a_block_that_waits_for_a_silent_server_ends_when_it_is_cancelled(
    scheme: str, use: str
) -> None:
    async def main() -> None:
        threads = ours()
        with blackholed() as at:
            task = asyncio.ensure_future(used(CONSUMERS[use], f"{scheme}{at}"))
            while not ours() - threads:
                await asyncio.sleep(0.001)
            task.cancel()
            # Far sooner than the client would give up by itself.
            await asyncio.wait([task], timeout=2.0)
            assert task.cancelled()
        await nothing_is_left(Servers(at, lambda: 0), threads, "cancelled")

    asyncio.run(main())


def test_a_cancelled_close_does_not_wait_for_what_a_broker_holds(broker: EmbeddedBroker) -> None:
    with Producer("first", name_servers=broker.name_servers) as producer:
        producer.send(Message(TOPIC, b"x"), sharding_key="k")
    eventually(lambda: broker.statistics.connections == 0, "the producer is gone")

    async def main() -> None:
        threads = ours()
        waits = {"pop_poll_ms": 15_000, "pop_invisible_ms": 60_000}
        consumer = await listening(broker.name_servers, consume_mode="pop", **waits).start()
        while not broker.statistics.pops:
            await asyncio.sleep(0.001)
        await cancel_close(consumer)
        servers = Servers("", lambda: broker.statistics.connections)
        await nothing_is_left(servers, threads, "cancelled")

    asyncio.run(main())


def test_a_cancelled_close_does_not_wait_for_what_a_proxy_holds() -> None:
    async def main() -> None:
        threads, proxy = ours(), WholeProxy()
        proxy.poll_s = LIMIT_S
        async with grpc_server(proxy) as (address, connections):
            consumer = await listening(f"grpc://{address}").start()
            while not proxy.receives:
                await asyncio.sleep(0.001)
            await cancel_close(consumer)
            servers = Servers(address, lambda: sum(each.is_open for each in connections))
            await nothing_is_left(servers, threads, "cancelled")

    asyncio.run(main())


@pytest.mark.parametrize("use", CONSUMERS)
def test_a_block_without_a_server_raises_and_leaves_nothing(use: str) -> None:
    async def main() -> None:
        threads = ours()
        with dead() as at, pytest.raises(RouteError):
            await used(CONSUMERS[use], at)
        await nothing_is_left(Servers(at, lambda: 0), threads, "raised at the start")

    asyncio.run(main())


@pytest.mark.parametrize("use", CONSUMERS)
def test_a_block_that_a_proxy_refuses_raises_and_leaves_nothing(use: str) -> None:
    async def main() -> None:
        threads = ours()
        async with grpc_server(WholeProxy(is_ordered=False)) as (address, connections):
            with pytest.raises(BrokerError, match="not an ordered one"):
                await used(CONSUMERS[use], f"grpc://{address}")
            servers = Servers(address, lambda: sum(each.is_open for each in connections))
            await nothing_is_left(servers, threads, "raised at the start")

    asyncio.run(main())
