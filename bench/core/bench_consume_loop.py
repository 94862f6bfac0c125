"""Consume loop: runs of a dispatcher over a filled queue; its listener does nothing.

    python -m bench.core.bench_consume_loop      nanoseconds a message

A run with one pull's messages is what a consumer that keeps up does at each pull; one with a whole
claim is what it does while it catches up. By key a call has one message, and the run does what
other workers would be submitted for, too. Concurrent runs are those of the one thread that a quick
listener gets; passing the queue on costs nothing here, which in a worker pool it does. The queue,
its lease and its statistics are real ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC, pull_body
from ordermq.client.user_code import OwnThreads
from ordermq.clock import SystemClock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.concurrent import ConcurrentDispatcher
from ordermq.consumer.dispatch.consume_loop import DispatcherParts
from ordermq.consumer.dispatch.failure_policy import DeadLetter, policy_for
from ordermq.consumer.dispatch.key_ordered import KeyOrderedDispatcher
from ordermq.consumer.dispatch.orderly import OrderlyDispatcher
from ordermq.consumer.dispatch.worker_pool import Serving
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import AssignedQueue, QueueCallbacks
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder, MemberContext
from ordermq.events import NoHistory
from ordermq.leases.lease import UNLOCKED, Lease
from ordermq.model.message import MessageBatch, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult
from ordermq.remoting.event_loop import new_event_loop

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_RUNS = 40 if not workloads.IS_QUICK else 4
_TIMES = 5
_CLAIM = 256  # messages: the most of one claim
_MOST_CALLS = 256  # by key: messages of a queue
_TASKS = 64
_NEVER_STOPS = DeadLetterGuard("bench", 0, 0, ConsumerStatistics())


def _parts(
    config: ConsumeConfig, listener: Callable[..., object], statistics: ConsumerStatistics
) -> DispatcherParts:
    clock = SystemClock()
    return DispatcherParts(
        member=MemberContext(
            cast(Any, SimpleNamespace(clock=clock, runtime=None, client_id="me")),
            "bench",
            EventRecorder(NoHistory(), "bench"),
            statistics,
        ),
        config=config,
        listener=cast(Any, listener),
        user_code=OwnThreads(),
        guard=_NEVER_STOPS,
    )


def consumed(batch: int, messages: int) -> Work:
    """Run over queues that were just filled with so many messages, each given out in batches."""
    config = ConsumeConfig(consume_message_batch_max_size=batch)
    pool: Any = SimpleNamespace(report_calls=lambda calls: True, awaited=None)
    dispatcher = OrderlyDispatcher(
        _parts(config, lambda *_: ConsumeResult.SUCCESS, ConsumerStatistics(SystemClock())),
        policy_for(None, config, "bench"),
        cast(Any, SimpleNamespace(is_transactional=False)),
    )
    dispatcher._pool = pool
    answer = MessageBatch(_QUEUE, pull_body(messages, 100))
    callbacks = QueueCallbacks(lambda *_: None, lambda _: None, lambda _: None, lambda: None)
    filled = [
        AssignedQueue(_QUEUE, "bench", Lease(1, 1 << 60, True), 0, callbacks) for _ in range(_RUNS)
    ]

    def fill() -> None:
        for queue in filled:  # the same ones each time: a queue has thousands of runs
            queue.reposition(queue.generation, 0)
            queue.batches_per_claim = max(1, _CLAIM // batch)  # as after eight quick claims
            queue.accept(queue.generation, answer, messages)

    def run() -> None:
        serve = dispatcher._run
        for queue in filled:
            serve(queue, Serving())

    def check() -> None:
        assert all(queue.done_offset == messages for queue in filled)

    case = f"{messages} messages in batches of {batch}"
    return Work(case, _RUNS * messages, run, check, fill, _TIMES)


def consumed_by_key(is_async: bool) -> Work:
    """Run over a queue whose messages have a key each, with a plain or an `async def` listener."""
    config = ConsumeConfig(order_by_key=True, max_in_flight_per_queue=_MOST_CALLS)
    statistics = ConsumerStatistics(SystemClock())
    pool: Any = SimpleNamespace(
        report_calls=lambda calls: True, awaited=None, submit=lambda assigned: None
    )

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async def listen_async(messages: Sequence[MessageView], context: ConsumeContext) -> None:
        await asyncio.sleep(0)

    dispatcher = KeyOrderedDispatcher(
        _parts(config, listen, statistics),
        policy_for(None, config, "bench"),
        cast(Any, SimpleNamespace(is_transactional=False)),
    )
    dispatcher._pool = pool
    dispatcher._listener = listen_async if is_async else listen
    answer = MessageBatch(_QUEUE, pull_body(_MOST_CALLS, 100, sharding_keys=_MOST_CALLS))
    filled: list[KeyOrderedQueue] = []

    def fill() -> None:
        callbacks = QueueCallbacks(lambda *_: None, lambda _: None, lambda _: None, lambda: None)
        filled[:] = [
            KeyOrderedQueue(_QUEUE, "bench", Lease(1, 1 << 60, True), 0, config, callbacks)
            for _ in range(_RUNS)
        ]
        for queue in filled:
            queue.accept(0, answer, _MOST_CALLS)

    def run() -> None:
        for queue in filled:
            dispatcher._run(queue, Serving())

    async def tasks() -> None:
        # So many at once, as where a listener waits.
        for queue in filled:
            served = (dispatcher._run_async(queue, asyncio.Event()) for _ in range(_TASKS))
            await asyncio.gather(*served)

    def run_async() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(tasks())

    def check() -> None:
        assert all(queue.done_offset == _MOST_CALLS for queue in filled)

    case = f"by key, {'async' if is_async else 'plain'}"
    items = _RUNS * _MOST_CALLS
    return Work(case, items, run_async if is_async else run, check, fill, _TIMES)


def consumed_concurrently(batch: int, messages: int) -> Work:
    """Run over queues that were just filled, each as long as it is submitted."""
    config = ConsumeConfig(consume_message_batch_max_size=batch)
    dispatcher = ConcurrentDispatcher(
        _parts(config, lambda *_: ConsumeResult.SUCCESS, ConsumerStatistics(SystemClock())),
        DeadLetter(),
        None,
        is_broadcasting=False,
    )
    submitted: deque[AssignedQueue] = deque()
    pool: Any = SimpleNamespace(
        report_calls=lambda calls: False, awaited=None, submit=submitted.append
    )
    dispatcher._pool = pool
    answer = MessageBatch(_QUEUE, pull_body(messages, 100))
    filled: list[AssignedQueue] = []

    def fill() -> None:
        filled.clear()
        for _ in range(_RUNS):
            callbacks = QueueCallbacks(
                lambda *_: None, lambda _: None, lambda _: None, lambda: None
            )
            queue = AssignedQueue(_QUEUE, "bench", UNLOCKED, 0, callbacks)
            queue.accept(0, answer, messages)
            filled.append(queue)

    def run() -> None:
        serve = dispatcher._run
        for queue in filled:
            submitted.append(queue)
            while submitted:
                serving = Serving()
                serve(submitted.popleft(), serving)
                if serving.submits:
                    submitted.append(queue)

    def check() -> None:
        assert all(queue.done_offset == messages for queue in filled)

    case = f"concurrent, {messages} messages in batches of {batch}"
    return Work(case, _RUNS * messages, run, check, fill, _TIMES)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for batch in workloads.LISTENER_BATCHES:
        for messages in (workloads.PULL_SIZE, _CLAIM):
            yield f"{batch}-{messages}", partial(consumed, batch, messages)
            made = partial(consumed_concurrently, batch, messages)
            yield f"concurrent-{batch}-{messages}", made
    for is_async in (False, True):
        name = "async" if is_async else "plain"
        yield f"by_key-{name}", partial(consumed_by_key, is_async)


def main() -> None:
    figures = ours("consume loop")
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
