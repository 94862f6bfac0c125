"""What a member is made from: all a push consumer was told until it started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ordermq.clock import Clock
from ordermq.config import ConsumerConfig
from ordermq.consumer.dispatch.failure_policy import FailurePolicy
from ordermq.consumer.listener import ConcurrentListener, Listener
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.events import Recorder
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What a push consumer was told, once it is complete."""

    group: str
    client_id: str
    name_servers: Sequence[str]
    config: ConsumerConfig
    subscriptions: Sequence[Subscription]
    listener: Listener | None  # of an orderly group; else there is a concurrent one
    concurrent_listener: ConcurrentListener | None
    offset_file: OffsetFile | None  # of a broadcasting member
    on_failure: FailurePolicy
    on_assigned: Callable[[MessageQueue], None] | None
    on_revoked: Callable[[MessageQueue], None] | None
    clock: Clock
    history: Recorder
    statistics: ConsumerStatistics
