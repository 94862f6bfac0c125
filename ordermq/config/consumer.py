"""Settings of push consumers, and what they share with lite pull consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ordermq.callables import require_plain
from ordermq.config.checks import (
    DAY_MS,
    number,
    require_choice,
    require_dead_letter_window,
    require_flags,
    require_moment,
    require_paths,
    require_ranges,
)
from ordermq.config.client import ClientConfig
from ordermq.config.remoting import RemotingConfig
from ordermq.config.trace import TraceConfig
from ordermq.errors import ConfigError
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.wall_time import Moment


class MessageModel(StrEnum):
    """Delivery of each message to one member of the group, or to every member."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class ConsumeMode(StrEnum):
    """Way to get messages: pulls of queues that a member owns, or leases of batches
    (docs/pop.md).
    """

    PULL = "pull"
    POP = "pop"


class ConsumeFromWhere(StrEnum):
    """Start of a group without a committed offset (docs/internals/semantics.md#rebalance)."""

    LAST_OFFSET = "last_offset"
    FIRST_OFFSET = "first_offset"
    TIMESTAMP = "timestamp"


class Allocation(StrEnum):
    """Allocation of a topic's queues to the members (docs/internals/semantics.md#rebalance).

    Strategies with parameters are in `ordermq.consumer.group.allocation`.
    """

    AVG = "avg"
    AVG_BY_CIRCLE = "avg_by_circle"
    CONSISTENT_HASH = "consistent_hash"


# (sorted queues of a topic, sorted client ids of the members, own client id) -> own queues.
AllocationStrategy = Callable[[Sequence[Any], Sequence[str], str], list[Any]]


class Keyless(StrEnum):
    """Order of messages without a sharding key in a key-ordered queue
    (docs/internals/semantics.md#key-lanes).
    """

    LANE = "lane"  # in order among themselves, concurrent with the messages of keys
    BARRIER = "barrier"  # each waits for all earlier messages and blocks all later ones


class FetchConfig(Value, kw_only=True):
    """Pulls of a queue ahead of whoever takes its messages: what push and lite pull consumers share
    (docs/internals/semantics.md#pull-loop).
    """

    # Messages per pull request.
    pull_batch_size: int = number(32, 1, 1_024)
    # Bytes per pull request; RocketMQ's broker ignores it.
    pull_batch_bytes: int = number(262_144, 1, 16_000_000)
    # Buffered messages of a queue above which pulling pauses.
    pull_threshold_for_queue: int = number(1_000, 1, 65_535)
    # MiB of buffered bodies of a queue above which pulling pauses.
    pull_threshold_size_for_queue_mib: int = number(100, 1, 1_024)
    # Pause after a failed pull.
    pull_delay_on_error_ms: int = number(1_000, 1, DAY_MS)
    # Time the broker may hold a pull request while there is no message.
    broker_suspend_ms: int = number(15_000, 1, DAY_MS)
    # Time for the response to a pull; must exceed broker_suspend_ms.
    pull_timeout_ms: int = number(30_000, 1, DAY_MS)
    # Drop a message that a producer sent again, if its id is that of one of so many messages before
    # it; 0: off. They are read again on each take-over.
    deduplicate: int = number(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms={self.pull_timeout_ms}: expected more than "
                f"broker_suspend_ms={self.broker_suspend_ms}, or every idle pull times out"
            )


class PullConfig(FetchConfig, kw_only=True):
    """Flow control of the pull loop, per queue (docs/internals/semantics.md#pull-loop)."""

    # Buffered messages of a topic, divided by its assigned queues; -1: no limit.
    pull_threshold_for_topic: int = number(-1, -1, 6_553_500)
    # MiB of buffered bodies of a topic, divided likewise; -1: no limit.
    pull_threshold_size_for_topic_mib: int = number(-1, -1, 102_400)
    # Pause in ms after a pull that returned messages.
    pull_interval_ms: int = number(0, 0, 65_535)
    # Offsets between the oldest unfinished and the newest buffered message above which pulling
    # pauses.
    consume_concurrently_max_span: int = number(2_000, 1, 65_535)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pull_threshold_for_topic", "pull_threshold_size_for_topic_mib"):
            if getattr(self, name) == 0:
                raise ConfigError(f"PullConfig.{name}=0: expected -1 (none) or more than 0")

    @property
    def has_topic_limits(self) -> bool:
        """True if limits of a whole topic are set, which its queues share."""
        return self.pull_threshold_for_topic != -1 or self.pull_threshold_size_for_topic_mib != -1

    def for_one_of(self, queues: int) -> PullConfig:
        """Return the settings of one of `queues` queues: the topic's limits are divided
        (docs/internals/semantics.md#pull-loop).
        """
        messages, mib = self.pull_threshold_for_topic, self.pull_threshold_size_for_topic_mib
        changed: dict[str, Any] = {}
        # As in Java, a topic's limit replaces the queue's, and is at least 1: 0 would never pull.
        if messages != -1:
            changed["pull_threshold_for_queue"] = min(max(messages // queues, 1), 65_535)
        if mib != -1:
            changed["pull_threshold_size_for_queue_mib"] = min(max(mib // queues, 1), 1_024)
        return replace(self, **changed) if changed else self


class LeaseConfig(Value, kw_only=True):
    """Queue leases (docs/internals/semantics.md#leases-and-renewal,
    docs/internals/semantics.md#fencing).

    A broker that sends the life of its locks, as the embedded one does, shortens the lease to half
    of it, so that a member always stops before another one starts.
    """

    # End of a lease, counted from the send of its last granted request.
    lock_max_live_ms: int = number(30_000, 100, DAY_MS)
    # Time between renewals; must be less than lock_max_live_ms. A third of the lease is the most,
    # whatever is set here, so that a second renewal comes in time.
    lock_interval_ms: int = number(10_000, 10, DAY_MS)
    # Stop this long before the end of the lease; at most a fifth of it.
    lease_margin_ms: int = number(2_000, 0, DAY_MS)
    # Longest time between requests for a lock another member holds; the first follow after 5 ms,
    # and a broker may notify the member sooner.
    lock_retry_ms: int = number(200, 10, DAY_MS)
    # Store the epoch of each lock at brokers that have none of their own, as all of RocketMQ's: two
    # reads and a write when a queue is taken, a write when it is given up. False spares them; then
    # `context.fence_token` raises there.
    store_epochs: bool = True

    def __post_init__(self) -> None:
        require_flags(self)
        require_ranges(self)
        if self.lock_interval_ms >= self.lock_max_live_ms:
            raise ConfigError(
                f"lock_interval_ms={self.lock_interval_ms}: expected less than "
                f"lock_max_live_ms={self.lock_max_live_ms}, or leases end between renewals"
            )


class ConsumeConfig(Value, kw_only=True):
    """Listener calls: orderly (docs/internals/semantics.md#orderly-consumption), by key
    (docs/internals/semantics.md#key-lanes) and concurrent
    (docs/internals/semantics.md#concurrent-consumption).
    """

    # Threads that run listeners.
    consume_thread_count: int = number(20, 1, 1_000)
    # Largest number of messages per listener call.
    consume_message_batch_max_size: int = number(1, 1, 1_024)
    # Commit what a listener returned from; False: only what it commits itself.
    auto_commit: bool = True
    # Time between commits to the broker; 0: after every batch.
    commit_interval_ms: int = number(5_000, 0, DAY_MS)
    # Time after which a queue lets other queues use its thread.
    max_time_consume_continuously_ms: int = number(60_000, 1, DAY_MS)
    # Pause of a queue after SUSPEND or a listener's exception, in ms.
    suspend_current_queue_time_ms: int = number(1_000, 10, 30_000)
    # Ordered: attempts of one message before `on_failure`, by default the dead-letter topic;
    # 0: the number of the policy.
    max_attempts: int = number(0, 0, 1 << 31)
    # Pause the consumer, until `resume()`, after so many dead letters among the last
    # `dead_letter_window` messages of a topic; 0: never.
    pause_after_dead_letters: int = number(10, 0, 1_000)
    # Messages of a topic that `pause_after_dead_letters` looks at; as many as it: dead letters in
    # a row; 0: twice as many.
    dead_letter_window: int = number(0, 0, 1_000_000)
    # Time after which a revoked queue whose listener still runs is reported.
    drain_timeout_ms: int = number(30_000, 1, DAY_MS)
    # Retries of one message before the dead-letter topic; -1: 16 in a concurrent group, no limit
    # in an ordered one.
    max_reconsume_times: int = number(-1, -1, (1 << 31) - 1)
    # A listener that returns None suspends, as in Java; False: it has succeeded.
    strict_results: bool = False
    # Time after which a listener call is reported as slow; concurrent: the message is also sent
    # back. Java's number is in minutes.
    consume_timeout_ms: int = number(900_000, 1, DAY_MS)
    # Concurrent: pause before a local retry, if no broker took the message back.
    send_back_retry_ms: int = number(5_000, 1, DAY_MS)
    # Process different sharding keys of one queue concurrently.
    order_by_key: bool = False
    # By key: messages of a queue in listeners at the same time.
    max_in_flight_per_queue: int = number(20, 1, 10_000)
    # By key: finished messages beyond the oldest unfinished one.
    max_ahead_per_queue: int = number(2_000, 1, 1 << 30)
    # By key: order of messages without a sharding key, "lane" or "barrier".
    keyless: Keyless = Keyless.LANE

    def __post_init__(self) -> None:
        require_flags(self)
        require_choice(self, keyless=Keyless)
        if self.order_by_key and not self.auto_commit:
            raise ConfigError(
                "order_by_key=True needs auto_commit=True: a COMMIT of one message "
                "would also commit those of other keys that are not finished"
            )
        require_ranges(self)
        require_dead_letter_window(self)


class RebalanceConfig(Value, kw_only=True):
    """Allocation of queues to the members (docs/internals/semantics.md#rebalance)."""

    # Strategy that shares the queues among the members, or a function that does.
    allocation: Allocation | AllocationStrategy = Allocation.AVG
    # Start of a group without a committed offset: "last_offset", "first_offset" or "timestamp".
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # Start with "timestamp": in ms since 1970, a datetime (without a zone: local time), or an age
    # as "2h" or a timedelta, counted back from when the member joined; 0: half an hour.
    consume_timestamp_ms: Moment = 0
    # Time between rebalances while nothing changes.
    rebalance_interval_ms: int = number(20_000, 10, DAY_MS)
    # Least time between rebalances, so that many notifications cause one.
    rebalance_min_interval_ms: int = number(5, 1, DAY_MS)

    def __post_init__(self) -> None:
        if callable(self.allocation) and not isinstance(self.allocation, type):
            require_plain("allocation", self.allocation)
        else:
            require_choice(self, allocation=Allocation)
        require_choice(self, consume_from_where=ConsumeFromWhere)
        require_ranges(self)
        require_moment(self, "consume_timestamp_ms")
        if self.consume_timestamp_ms and self.consume_from_where is not ConsumeFromWhere.TIMESTAMP:
            raise ConfigError(
                f"consume_timestamp_ms={self.consume_timestamp_ms!r} is not used with "
                f'consume_from_where="{self.consume_from_where}": set that to "timestamp"'
            )


class PopConfig(Value, kw_only=True):
    """Leases of a consumer with consume_mode="pop" (docs/internals/semantics.md#pop)."""

    # Life of the lease of a popped batch, renewed at a third of it: so long is a queue silent after
    # its member was killed or frozen.
    pop_invisible_ms: int = number(15_000, 1_000, 12 * 3_600_000)
    # Time the broker may hold a pop while there is no message, and `close` may take to end it.
    pop_poll_ms: int = number(1_000, 1, 15_000)
    # Messages per pop; a queue hands out the next ones when these are acknowledged.
    pop_batch_size: int = number(32, 1, 32)

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.pop_poll_ms > self.pop_invisible_ms // 2:
            raise ConfigError(
                f"pop_poll_ms={self.pop_poll_ms}: expected at most half of "
                f"pop_invisible_ms={self.pop_invisible_ms}, or a lease may be over when it arrives"
            )


class ConsumerConfig(ClientConfig, kw_only=True):
    """All settings of a push consumer, in groups."""

    # "clustering": one member gets a message; "broadcasting": every member does.
    message_model: MessageModel = MessageModel.CLUSTERING
    # "pull": a member owns queues; "pop": it leases batches, on brokers of RocketMQ 5.
    consume_mode: ConsumeMode = ConsumeMode.PULL
    # Folder for the offsets of broadcasting members, as in Java.
    local_offset_store_dir: str = "~/.rocketmq_offsets"
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    pull: PullConfig = field(default_factory=PullConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    pop: PopConfig = field(default_factory=PopConfig)
    consume: ConsumeConfig = field(default_factory=ConsumeConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        # Not super(): slots make a dataclass anew, and super() would know the first one.
        ClientConfig.__post_init__(self)
        require_choice(self, message_model=MessageModel, consume_mode=ConsumeMode)
        require_paths(self, "local_offset_store_dir")
