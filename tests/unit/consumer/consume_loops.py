"""The consume loops that tests compare: that of the core, and that of the reference, which serves
any core's queues; and what a dispatcher without a client stands on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from ordermq import core
from ordermq.client.user_code import OwnThreads
from ordermq.clock import Clock
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.consume_loop import DispatcherParts
from ordermq.consumer.queue.dead_letter_guard import DeadLetterGuard
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder, MemberContext
from ordermq.core import reference
from ordermq.events import NoHistory, Recorder

LOOPS = ("reference", "core")


@contextmanager
def consuming_by(loop: str) -> Iterator[None]:
    """Have dispatchers that are made within use this loop."""
    if loop == "core":
        yield
        return
    with mock.patch.multiple(
        core, ConsumePlan=reference.ConsumePlan, ConsumeRun=reference.ConsumeRun
    ):
        yield


def dispatcher_parts(
    clock: Clock,
    config: ConsumeConfig,
    statistics: ConsumerStatistics,
    recorder: Recorder | None = None,
    runtime: object = None,
) -> DispatcherParts:
    """Return the parts of a dispatcher whose listener does nothing and whose client has no broker.

    Args: runtime: spawns what the dispatcher does on the I/O thread.
    """
    client = SimpleNamespace(clock=clock, runtime=runtime, client_id="me")
    events = EventRecorder(recorder or NoHistory(), "G")
    return DispatcherParts(
        member=MemberContext(cast(Any, client), "G", events, statistics),
        config=config,
        listener=lambda messages, context: None,
        user_code=OwnThreads(),
        guard=DeadLetterGuard("G", 0, 0, statistics),
    )
