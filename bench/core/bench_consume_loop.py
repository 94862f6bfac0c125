"""Consume loop: runs of an orderly dispatcher over a filled queue; its listener does nothing.

    python -m bench.core.bench_consume_loop      both loops, nanoseconds a message

A run with one pull's messages is what a consumer that keeps up does at each pull; one with a whole
claim is what it does while it catches up. The queue, its lease and its statistics are real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from bench import workloads
from bench.core.figures import Work, ours
from bench.core.pull_bodies import TOPIC, pull_body
from ordermq import core
from ordermq.client.user_code import OwnThreads
from ordermq.clock import SystemClock
from ordermq.config import ConsumeConfig, ConsumePathKind
from ordermq.consumer.dispatch.failure_policy import policy_for
from ordermq.consumer.dispatch.orderly import OrderlyDispatcher
from ordermq.consumer.queue.assigned_queue import AssignedQueue, Lease, QueueCallbacks
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.events import NoHistory
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_QUEUE = MessageQueue(TOPIC, "broker-a", 3)
_RUNS = 40 if not workloads.IS_QUICK else 4
_TIMES = 5
_CLAIM = 256  # messages: the most of one claim


def consumed(path: ConsumePathKind, batch: int, messages: int) -> Work:
    """Run over queues that were just filled with so many messages, each given out in batches."""
    clock = SystemClock()
    config = ConsumeConfig(consume_message_batch_max_size=batch, consume_path=path)
    pool: Any = SimpleNamespace(goes_on=lambda calls: True, awaited=None)
    dispatcher = OrderlyDispatcher(
        cast(Any, SimpleNamespace(clock=clock, runtime=None)),
        "bench",
        config,
        lambda messages, context: ConsumeResult.SUCCESS,
        policy_for(None, config, "bench"),
        cast(Any, SimpleNamespace(is_transactional=False)),
        EventRecorder(NoHistory(), "bench"),
        ConsumerStatistics(clock),
        OwnThreads(),
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
            queue = AssignedQueue(_QUEUE, "bench", Lease(1, 1 << 60, True), 0, callbacks)
            queue.batches_per_claim = max(1, _CLAIM // batch)  # as after eight quick claims
            queue.accept(0, answer, messages)
            filled.append(queue)

    def run() -> None:
        serve = dispatcher._run
        for queue in filled:
            serve(queue)

    def check() -> None:
        assert all(queue.done_offset == messages for queue in filled)

    case = f"{path}, {messages} messages in batches of {batch}"
    return Work(case, _RUNS * messages, run, check, fill, _TIMES)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    # The native loop is of one core alone; with another it would be the Python one, timed again.
    paths = list(ConsumePathKind) if core.OrderlyRun else [ConsumePathKind.PYTHON]
    for path in paths:
        for batch in workloads.LISTENER_BATCHES:
            for messages in (workloads.PULL_SIZE, _CLAIM):
                yield f"{path}-{batch}-{messages}", partial(consumed, path, batch, messages)


def main() -> None:
    figures = ours("consume loop")
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
