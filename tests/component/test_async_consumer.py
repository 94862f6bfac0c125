"""AsyncConsumer: user code on the caller's loop, under leases (docs/asyncio.md)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ordermq import AsyncBatch, AsyncConsumer, DeadLetter, MessageQueue, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.client.user_code import CallersLoop
from ordermq.config import ConsumerConfig, LitePullConsumerConfig
from ordermq.consumer import lite_pull_consumer
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.errors import ConfigError, StateError, UsedAfterFork
from tests.component.conftest import DEADLINE_S, Seen, assert_in_order, eventually, numbered
from tests.component.forked import in_child
from tests.component.test_hand_off import Flow
from tests.component.test_ordered_polling import take
from tests.component.test_orderly_consumer import committed, send_all

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a loop of each kind, for a limited time."""

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(limited(work))

    return run


async def limited(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(3 * DEADLINE_S):
        return await work


def made(broker: EmbeddedBroker, **options: Any) -> AsyncConsumer:
    """A consumer of group "g" on topic "orders", from the first message on."""
    options = {"consume_from_where": "first_offset"} | options
    return AsyncConsumer("g", "orders", name_servers=broker.name_servers, **options)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what another thread or process does, beside the loop's tasks."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_S} s: {what}")


async def first_of(consumer: AsyncConsumer) -> AsyncBatch:
    return await anext(aiter(consumer))


# Listeners.


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent"])
def test_listeners_and_callbacks_run_on_the_loop_that_started_the_consumer(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, run: Run, kind: str
) -> None:
    send_all(producer, numbered(100))
    request_id = contextvars.ContextVar("request_id", default="none")
    loops: set[asyncio.AbstractEventLoop] = set()
    known: set[str] = set()
    told: list[str] = []

    def note() -> None:
        loops.add(asyncio.get_running_loop())
        known.add(request_id.get())

    async def assigned(queue: MessageQueue) -> None:
        await asyncio.sleep(0)
        note()
        told.append("assigned")

    def revoked(queue: MessageQueue) -> None:
        note()
        told.append("revoked")

    async def main() -> None:
        request_id.set("the caller's")
        arrived: asyncio.Queue[int] = asyncio.Queue()  # bound to this loop by its first wait
        settings: dict[str, Any] = {"order_by_key": True} if kind == "by key" else {}
        consumer = made(broker, on_assigned=assigned, on_revoked=revoked, **settings)
        waiting = asyncio.create_task(arrived.get())

        @(consumer.concurrently if kind == "concurrent" else consumer.orderly)
        async def listen(messages: Any, context: Any) -> None:
            await asyncio.sleep(0)
            note()
            seen.take(messages, context)
            await arrived.put(len(messages))

        async with consumer:
            count = await waiting
            while count < 100:
                count += await arrived.get()
        note()

    run(main())
    assert len(loops) == 1
    assert known == {"the caller's"}
    # Retry topics have a queue, too.
    assert told.count("assigned") == told.count("revoked") >= 8
    assert committed(broker) == 100
    assert seen.duplicates() == 0
    if kind != "concurrent":
        assert_in_order(seen, 100)


def test_a_backlog_leaves_the_loop_to_its_other_tasks(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(100, keys=1))
    turns_at_calls: list[int] = []

    async def main() -> None:
        consumer, turns = made(broker, consume_message_batch_max_size=1), 0

        async def turn() -> None:
            nonlocal turns
            while len(turns_at_calls) < 100:
                await asyncio.sleep(0)
                turns += 1

        turning = asyncio.create_task(turn())  # before the start: calls may come during it

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:  # awaits nothing
            turns_at_calls.append(turns)
            time.sleep(0.002)  # longer than a run may keep the loop

        async with consumer:
            await turning

    run(main())
    assert len(set(turns_at_calls)) == 100, "another task had a turn between any two calls"


def test_a_cancelled_listener_has_not_failed_and_one_that_raises_it_has(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, run: Run
) -> None:
    send_all(producer, numbered(3, keys=1))
    attempts: list[tuple[int, int]] = []

    async def main() -> None:
        consumer = made(
            broker,
            on_failure=DeadLetter(max_attempts=2),
            suspend_current_queue_time_ms=10,
            consume_message_batch_max_size=1,
        )
        stuck, done = asyncio.Event(), asyncio.Event()

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            offset = messages[0].queue_offset
            attempts.append((offset, context.attempt))
            if attempts.count((0, 0)) < 4 and offset == 0:
                stuck.set()
                await asyncio.Event().wait()
            if offset == 1:  # it awaits something that somebody has cancelled
                other = asyncio.create_task(asyncio.sleep(0))
                other.cancel()
                await other
            seen.take(messages, context)
            if offset == 2:
                done.set()

        async with consumer:
            mine = asyncio.current_task()
            for _ in range(3):
                await stuck.wait()
                stuck.clear()
                for task in asyncio.all_tasks() - {mine}:  # as recipes for a shutdown do
                    if "orders" in task.get_name():
                        task.cancel()
            await done.wait()
            assert consumer.statistics["listener_errors"] == 3 + 2
            assert consumer.statistics["diverted"] == 1

    run(main())
    assert attempts == [(0, 0)] * 4 + [(1, 0), (1, 1), (2, 0)]
    assert [offset for _, offset, _, _ in seen.deliveries] == [0, 2]


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrently"])
def test_a_task_that_is_cancelled_before_its_first_step_is_followed_by_another(
    producer: Producer,
    broker: EmbeddedBroker,
    seen: Seen,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    send_all(producer, numbered(1))
    spawn, cancelled = CallersLoop.spawn, []

    def spawn_and_cancel(
        self: CallersLoop, work: Coroutine[Any, Any, Any], name: str
    ) -> asyncio.Task[Any]:
        task = spawn(self, work, name)
        if "orders" in name and len(cancelled) < 3:
            cancelled.append(task)
            task.cancel()
        return task

    monkeypatch.setattr(CallersLoop, "spawn", spawn_and_cancel)

    async def main() -> None:
        consumer = made(broker, order_by_key=kind == "by key")
        done = asyncio.Event()

        async def listen(messages: Any, context: Any) -> None:
            seen.take(messages, context)
            done.set()

        (consumer.concurrently if kind == "concurrently" else consumer.orderly)(listen)
        async with consumer:
            await done.wait()
            assert consumer.statistics["leases_lost"] == 0

    run(main())
    assert len(cancelled) == 3
    assert len(seen.deliveries) == 1


def test_a_listener_that_outlasts_close_is_cancelled_before_close_returns(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(1))
    ended: list[str] = []

    async def main() -> None:
        consumer, called = made(broker), asyncio.Event()

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            called.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("listener")

        await consumer.start()
        await called.wait()
        assert await consumer.close(0.01) is False
        ended.append("close")

    run(main())
    assert ended == ["listener", "close"]
    assert committed(broker) == 0


def test_a_listener_may_stop_its_consumer_and_not_close_it(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(1))
    refused: list[str] = []

    async def main() -> None:
        consumer = made(broker)

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            # By itself, or in a task that is made of it.
            for closing in (consumer.close(), asyncio.gather(consumer.close())):
                try:
                    await closing
                except StateError as error:
                    refused.append(str(error))
            consumer.stop()

        assert await consumer.run() is True
        assert await consumer.close() is True
        with pytest.raises(StateError, match="only once"):
            await consumer.start()

    run(main())
    assert len(refused) == 2
    assert all("call stop() there" in each for each in refused)
    assert committed(broker) == 1


def test_run_ends_at_a_signal_on_the_main_thread_and_restores_the_handlers(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(1))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def main() -> None:
        consumer = made(broker)

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        assert await consumer.run() is True

    run(main())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert committed(broker) == 1


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_run_off_the_main_thread_leaves_signals_alone_and_says_so_once(
    producer: Producer,
    broker: EmbeddedBroker,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    caplog.set_level(logging.INFO, "ordermq.consumer")
    send_all(producer, numbered(1))
    before = signal.getsignal(signal.SIGTERM)
    closed: list[bool] = []
    if kind == "async":
        consumer: Any = made(broker)
        thread = threading.Thread(target=lambda: closed.append(asyncio.run(consumer.run())))
    else:
        consumer = PushConsumer(
            "g", name_servers=broker.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        thread = threading.Thread(target=lambda: closed.append(consumer.run()))
    consumer.orderly(seen.take)
    thread.start()
    seen.wait_for_count(1)
    assert signal.getsignal(signal.SIGTERM) == before
    consumer.stop()
    thread.join(DEADLINE_S)
    assert closed == [True]
    assert caplog.text.count("run() is not on the main thread") == 1


# Iteration.


def test_batches_are_of_one_queue_ascending_and_done_with_the_next_one(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, run: Run
) -> None:
    send_all(producer, numbered(400, keys=16))
    ends: dict[MessageQueue, int] = {}

    async def main() -> None:
        async with made(broker, poll_batch_size=7) as consumer:
            async for batch in consumer:
                queue = batch.message_queue
                assert batch.offsets() == list(range(ends.get(queue, 0), batch.next_offset))
                assert batch.fence_token[0] > 0
                assert not batch.is_revoked()
                ends[queue] = batch.next_offset
                take(seen, batch)
                if len(seen.deliveries) == 400:
                    consumer.stop()

    run(main())
    assert_in_order(seen, 400, keys=16)
    assert seen.duplicates() == 0
    assert committed(broker) == 400


@pytest.mark.parametrize(("hold_s", "turns"), [(-1.0, 20), (float("inf"), 1)])
def test_batches_that_wait_are_handed_out_without_a_turn_of_the_loop_until_it_is_due(
    producer: Producer,
    broker: EmbeddedBroker,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    hold_s: float,
    turns: int,
) -> None:
    monkeypatch.setattr(lite_pull_consumer, "HOLD_S", hold_s)
    send_all(producer, numbered(20, keys=1))
    turns_at_batches: list[int] = []

    async def main() -> None:
        consumer, counted = made(broker, poll_batch_size=1), 0

        async def turn() -> None:
            nonlocal counted
            while len(turns_at_batches) < 20:
                await asyncio.sleep(0)
                counted += 1

        async with consumer:
            held = consumer._use.iterated()._buffer.room.queues
            await until(
                lambda: any(each.process_queue.pending_count == 20 for each in held),
                "all messages are fetched",
            )
            turning = asyncio.create_task(turn())
            await asyncio.sleep(0)
            async for _ in consumer:  # awaits nothing
                turns_at_batches.append(counted)
                if len(turns_at_batches) == 20:
                    consumer.stop()
            await turning

    run(main())
    assert len(set(turns_at_batches)) == turns


def test_a_commit_is_stored_at_once_and_only_while_the_batch_is_out(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(6, keys=1))

    async def main() -> None:
        async with made(broker, poll_batch_size=2, auto_commit=False) as consumer:
            batches = consumer.batches()
            first = await anext(batches)
            await first.commit()
            assert await asyncio.to_thread(committed, broker) == 2
            with pytest.raises(StateError, match="this batch is done"):
                await first.commit()
            second = await anext(batches)
            member = consumer._use.iterated()._live()
            assigned = member.control.find(second.message_queue)
            member.client.runtime.post(assigned.lose_lease, "a test's own")
            await until(second.is_revoked, "the poller is told")
            with pytest.raises(StateError, match="its lease was lost"):
                await second.commit()
            again = await anext(batches)
            assert again.offsets() == second.offsets() == [2, 3]
            assert await asyncio.to_thread(committed, broker) == 2

    run(main())
    assert committed(broker) == 2, "the last batch was left behind"


@pytest.mark.parametrize("leaves", ["exception", "break"])
def test_a_batch_left_behind_is_redelivered_and_those_before_it_are_not(
    producer: Producer, broker: EmbeddedBroker, run: Run, leaves: str
) -> None:
    send_all(producer, numbered(6, keys=1))
    seen: list[list[int]] = []

    async def iterate(consumer: AsyncConsumer) -> None:
        async for batch in consumer:
            seen.append(batch.offsets())
            if batch.first_offset == 2:
                if leaves == "break":
                    break
                raise ValueError("a test's own failure")

    async def main() -> None:
        with contextlib.suppress(ValueError):
            async with made(broker, poll_batch_size=2) as consumer:
                with contextlib.suppress(ValueError):
                    await iterate(consumer)
                await iterate(consumer)  # a new loop does not say that the last one's batch is done
        async with made(broker, poll_batch_size=2) as consumer:
            async for batch in consumer:
                seen.append(batch.offsets())
                if batch.first_offset == 4:
                    await batch.commit()
                    break

    run(main())
    assert seen == [[0, 1], [2, 3], [2, 3], [2, 3], [4, 5]]
    assert committed(broker) == 6


def test_the_batch_of_a_cancelled_task_is_redelivered_at_once(
    producer: Producer, broker: EmbeddedBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    send_all(producer, numbered(4, keys=1))

    async def main() -> None:
        # The check for pollers that are gone runs once a second: it must not be needed here.
        async with made(broker, poll_batch_size=2) as consumer:
            held: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

            async def work() -> None:
                async for batch in consumer:
                    held.set_result(batch.offsets())
                    await asyncio.Event().wait()

            worker = asyncio.create_task(work(), name="worker-7")
            assert await held == [0, 1]
            worker.cancel()
            await asyncio.wait([worker])
            assert worker.cancelled()
            assert (await first_of(consumer)).offsets() == [0, 1]

    run(main())
    assert caplog.text.count("task worker-7 ended without polling again") == 1


def test_each_task_has_batches_of_its_own_and_close_waits_for_them(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, run: Run
) -> None:
    send_all(producer, numbered(400, keys=16))
    in_hands: set[MessageQueue] = set()

    async def work(consumer: AsyncConsumer) -> None:
        async for batch in consumer:
            assert batch.message_queue not in in_hands, "a queue is in one task's hands"
            in_hands.add(batch.message_queue)
            await asyncio.sleep(0.001)
            take(seen, batch)
            in_hands.remove(batch.message_queue)

    async def main() -> None:
        async with made(broker, poll_batch_size=3) as consumer, asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(work(consumer))
            await until(lambda: len(seen.deliveries) > 200, "half of them")
            assert await consumer.close()
            assert not in_hands

    run(main())
    assert committed(broker) == len(seen.deliveries)
    assert seen.duplicates() == 0


def test_a_close_and_a_seek_in_a_wrapper_task_give_up_the_batch_of_their_caller(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(6, keys=1))

    async def main() -> list[list[int]]:
        found = []
        consumer = await made(broker, poll_batch_size=2).start()
        batches = aiter(consumer)
        found.append((await anext(batches)).offsets())
        batch = await anext(batches)
        found.append(batch.offsets())
        # Each would wait for the batch of another task, so for the one of its caller for ever.
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(consumer.seek(batch.message_queue, 1))
        found.append((await anext(batches)).offsets())
        assert await asyncio.gather(consumer.close(DEADLINE_S / 2)) == [True]
        return found

    assert run(main()) == [[0, 1], [2, 3], [1, 2]]


class CancelledAt:
    """Runs a coroutine in this task, which is cancelled when it waits for the `at`-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._left = at

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        try:
            waits_for = self._work.send(None)
            while True:
                self._left -= 1
                if self._left == 0:
                    task.cancel()
                try:
                    yield waits_for
                except BaseException as error:  # noqa: BLE001 - the work's
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(None)
        except StopIteration as end:
            return end.value

    @property
    def was_cancelled(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("use", ["listener", "iteration"])
def test_a_cancellation_at_any_await_of_a_run_ends_it_all_the_same(
    producer: Producer, broker: EmbeddedBroker, seen: Seen, run: Run, use: str
) -> None:
    send_all(producer, numbered(1))

    async def listened(consumer: AsyncConsumer) -> None:
        @consumer.orderly
        async def listen(messages: Any, context: Any) -> None:
            consumer.stop()

        await consumer.run()

    async def iterated(consumer: AsyncConsumer) -> None:
        async with consumer:
            async for batch in consumer:
                await batch.commit()
                break

    async def main() -> None:
        works = {"listener": listened, "iteration": iterated}
        at, was_cancelled, before = 0, True, broker.statistics.connections
        while was_cancelled:
            at += 1
            # A new group each time: it begins with the message.
            consumer = AsyncConsumer(
                f"g{at}", "orders", name_servers=broker.name_servers,
                consume_from_where="first_offset",
            )  # fmt: skip
            work = CancelledAt(works[use](consumer), at)
            task = asyncio.ensure_future(awaited(work))
            await asyncio.wait([task])
            was_cancelled = work.was_cancelled
            assert task.cancelled() == was_cancelled, f"at await {at}"
            await until(lambda: broker.statistics.connections == before, f"left at await {at}")
            assert await consumer.close() in (True, False)
        assert at > 2, "it waits for its start and for its close at least"

    run(main())


async def awaited(work: Awaitable[Any]) -> Any:
    return await work


def test_a_cancelled_close_waits_no_longer(
    producer: Producer, broker: EmbeddedBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    send_all(producer, numbered(1))

    async def main() -> None:
        consumer = made(broker)
        await consumer.start()
        held = asyncio.Event()

        async def work() -> None:
            async for _ in consumer:
                held.set()
                await asyncio.Event().wait()

        worker = asyncio.create_task(work())
        await held.wait()
        closing = asyncio.create_task(consumer.close())
        await until(lambda: consumer.assigned_queues() == [], "it is closing")
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert await consumer.close() is False
        worker.cancel()

    run(main())
    assert "closing with batches in progress" in caplog.text


# Members.


@pytest.mark.parametrize("uses", ["iterated", "listening", "both"])
def test_members_on_one_loop_that_join_and_leave_lose_and_repeat_nothing(
    producer: Producer,
    broker: EmbeddedBroker,
    broker_history: Path,
    seen: Seen,
    run: Run,
    uses: str,
) -> None:
    send_all(producer, numbered(16, keys=16))

    @contextlib.asynccontextmanager
    async def member(is_listening: bool) -> AsyncIterator[AsyncConsumer]:
        consumer = made(broker)

        async def work() -> None:
            async for batch in consumer:
                await asyncio.sleep(0)
                take(seen, batch)

        if is_listening:

            @consumer.orderly
            async def listen(messages: Any, context: Any) -> None:
                await asyncio.sleep(0)
                seen.take(messages, context)

            async with consumer:
                yield consumer
        else:
            async with consumer:
                worker = asyncio.create_task(work())
                yield consumer
                assert await consumer.close()
                await worker

    async def main(flow: Flow) -> None:
        async with member(uses == "listening") as first:
            await until(lambda: len(seen.deliveries) > 50, "deliveries")
            for _ in range(2):
                async with member(uses != "iterated") as second:
                    await until(lambda m=second: len(m.assigned_queues()) >= 4, "a share")
                    count = len(seen.deliveries)
                    await until(lambda n=count: len(seen.deliveries) > n + 100, "deliveries")
                await until(lambda: len(first.assigned_queues()) >= 8, "all queues back")
            flow.__exit__()
            await until(lambda: len(seen.deliveries) >= flow.sent, "all of them")

    flow = Flow(producer, sent=16).__enter__()
    try:
        run(main(flow))
    finally:
        flow.__exit__()
    assert seen.duplicates() == 0
    assert_in_order(seen, flow.sent, keys=16)
    assert committed(broker) == flow.sent
    report = audit(broker_history)
    assert report.ok, report.violations


def test_a_loop_that_is_blocked_for_three_leases_loses_none(
    producer: Producer, broker: EmbeddedBroker, seen: Seen
) -> None:
    send_all(producer, numbered(80, keys=16))
    lease_ms = 2_000  # a busy machine renews it in time
    settings = {"lock_max_live_ms": lease_ms, "lock_interval_ms": 200}
    tokens: set[tuple[MessageQueue, int]] = set()

    async def main() -> None:
        async with made(broker, poll_batch_size=1, **settings) as consumer:
            member = consumer._use.iterated()._live()
            async for batch in consumer:
                tokens.add((batch.message_queue, batch.fence_token[0]))
                if not seen.deliveries:
                    # On this very loop: nothing else runs on it meanwhile.
                    wait_for_renewals(member.control.find(batch.message_queue), 3 * lease_ms)
                    assert not batch.is_revoked()
                take(seen, batch)
                if len(seen.deliveries) == 80:
                    await batch.commit()
                    break

    asyncio.run(limited(main()))
    assert seen.duplicates() == 0
    assert_in_order(seen, 80, keys=16)
    assert len(tokens) == 8, "one epoch per queue"


def wait_for_renewals(assigned: AssignedQueue, time_ms: int) -> None:
    def deadline_ms() -> int:
        return 0 if assigned.lease is None else assigned.lease.deadline_ms

    end_ms = deadline_ms() + time_ms
    eventually(lambda: deadline_ms() > end_ms, "so much time has passed, and it was renewed")


KILLED = """
import asyncio, os, signal, sys
from ordermq import AsyncConsumer

async def main():
    async with AsyncConsumer(
        "g", "orders", name_servers=sys.argv[1], poll_batch_size=3, auto_commit=False,
        consume_from_where="first_offset",
    ) as consumer:
        async for batch in consumer:
            if batch.first_offset == 3:
                print(*batch.fence_token, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            await batch.commit()

asyncio.run(main())
"""


def test_after_kill_9_what_was_not_committed_is_redelivered_in_order(
    producer: Producer, broker: EmbeddedBroker, seen: Seen
) -> None:
    send_all(producer, numbered(20, keys=1))
    command = [sys.executable, "-c", KILLED, broker.name_servers]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    epoch, first = map(int, killed.stdout.split())

    async def main() -> None:
        async with made(broker) as consumer:
            async for batch in consumer:
                if not seen.deliveries:
                    assert batch.fence_token > (epoch, first)
                take(seen, batch)
                if len(seen.deliveries) == 17:
                    break

    asyncio.run(limited(main()))
    assert [int(body) for body in seen.bodies_of("k0")] == list(range(3, 20))


def test_close_leaves_the_loop_alone_while_the_broker_is_dead(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(1))
    producer.close()

    async def main() -> int:
        turns = 0
        consumer = made(broker)
        await consumer.start()
        batches = consumer.batches()
        await anext(batches)
        await asyncio.to_thread(broker.close)
        closing = asyncio.create_task(consumer.close(0.2))
        while not closing.done():
            turns += 1
            await asyncio.sleep(0.001)
        await closing
        return turns

    assert run(main()) > 1, "a close that blocked the loop would leave it one turn"


def test_a_loop_that_ends_before_its_consumer_is_reported(
    producer: Producer, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = made(broker)

    @consumer.orderly
    async def listen(messages: Any, context: Any) -> None: ...

    asyncio.run(consumer.start())
    send_all(producer, numbered(8))
    eventually(lambda: "the event loop was closed before its consumer" in caplog.text, "told")
    assert caplog.text.count("the event loop was closed before") == 1
    asyncio.run(consumer.close(0.01))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_needs_a_consumer_of_its_own(
    producer: Producer, broker: EmbeddedBroker, run: Run
) -> None:
    send_all(producer, numbered(1))

    async def main() -> None:
        consumer = made(broker)
        await consumer.start()

        async def of_child() -> None:
            with pytest.raises(UsedAfterFork, match="AsyncConsumer g was created in process"):
                consumer.batches()
            with pytest.raises(UsedAfterFork):
                consumer.stop()
            assert await consumer.close() is None
            async with AsyncConsumer(
                "h", "orders", name_servers=broker.name_servers, consume_from_where="first_offset"
            ) as own:
                await (await first_of(own)).commit()

        def child() -> None:
            asyncio.events._set_running_loop(None)  # this fork is made while a loop runs
            asyncio.run(of_child())

        in_child(child)
        assert (await first_of(consumer)).offsets() == [0]
        await consumer.close()

    run(main())
    assert committed(broker, group="h") == 1


# Settings.


def test_settings_are_those_of_the_use_and_wrong_ones_raise_at_once(
    broker: EmbeddedBroker,
) -> None:
    with pytest.raises(ConfigError, match="poll_batch_size=0"):
        made(broker, poll_batch_size=0)
    with pytest.raises(ConfigError, match="consume_thread_count=0"):
        made(broker, consume_thread_count=0)
    with pytest.raises(ConfigError, match="did you mean 'poll_batch_size'"):
        made(broker, pol_batch_size=1)
    with pytest.raises(ConfigError, match="max_attempts is for a listener, poll_batch_size for"):
        made(broker, poll_batch_size=1, max_attempts=2)
    with pytest.raises(ConfigError, match="in any case"):
        made(broker, ordered=False)
    with pytest.raises(ConfigError, match="with ordered=True"):
        AsyncConsumer("g", name_servers=broker.name_servers, config=LitePullConsumerConfig())

    async def listen(messages: Any, context: Any) -> None: ...

    iterated = made(broker, poll_batch_size=1)
    with pytest.raises(StateError, match="no listener"):
        iterated.orderly(listen)
    with pytest.raises(StateError, match="no listener"):
        asyncio.run(iterated.run())
    servers = broker.name_servers
    configured = AsyncConsumer("g", "orders", name_servers=servers, config=ConsumerConfig())
    for unheard, named in (
        (made(broker, commit_interval_ms=50, max_attempts=2), "commit_interval_ms, max_attempts:"),
        (configured, "config:"),
    ):
        with pytest.raises(StateError, match=f"To iterate, leave out {named} for listeners"):
            asyncio.run(unheard.start())
    hooked = made(broker)
    hooked.add_filter(lambda message: True)
    with pytest.raises(StateError, match=r"leave out add_filter\(\):"):
        asyncio.run(hooked.start())
    listening = made(broker)
    listening.orderly(listen)
    with pytest.raises(StateError, match="cannot be iterated"):
        aiter(listening)
    broadcast = made(broker, message_model="broadcasting")
    broadcast.concurrently(listen)
