"""Settings of push consumers, and what they share with lite pull consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ordermq.callables import require_plain
from ordermq.config.checks import (
    DAY_MS,
    require_choice,
    require_dead_letter_window,
    require_flags,
    require_moment,
    require_paths,
    require_range,
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


class PullConfig(Value, kw_only=True):
    """Flow control of the pull loop, per queue (docs/internals/semantics.md#pull-loop)."""

    # Messages per pull request. 1..1024.
    pull_batch_size: int = 32
    # Bytes per pull request; RocketMQ's broker ignores it. 1..16000000.
    pull_batch_bytes: int = 262_144
    # Buffered messages of a queue above which pulling pauses. 1..65535.
    pull_threshold_for_queue: int = 1_000
    # MiB of buffered bodies of a queue above which pulling pauses. 1..1024.
    pull_threshold_size_for_queue_mib: int = 100
    # Buffered messages of a topic, divided by its assigned queues; -1: no limit. -1..6553500.
    pull_threshold_for_topic: int = -1
    # MiB of buffered bodies of a topic, divided likewise; -1: no limit. -1..102400.
    pull_threshold_size_for_topic_mib: int = -1
    # Pause in ms after a pull that returned messages. 0..65535.
    pull_interval_ms: int = 0
    # Offsets between the oldest unfinished and the newest buffered message above which pulling
    # pauses. 1..65535.
    consume_concurrently_max_span: int = 2_000
    # Pause after a failed pull. 1 ms..1 day.
    pull_delay_on_error_ms: int = 1_000
    # Time the broker may hold a pull request while there is no message. 1 ms..1 day.
    broker_suspend_ms: int = 15_000
    # Time for the response to a pull; must exceed broker_suspend_ms. 1 ms..1 day.
    pull_timeout_ms: int = 30_000
    # Drop a message that a producer sent again, if its id is that of one of so many messages before
    # it; 0: off. They are read again on each take-over. 0..1000000.
    deduplicate: int = 0

    def __post_init__(self) -> None:
        require_range(
            self,
            pull_batch_size=(1, 1_024),
            pull_batch_bytes=(1, 16_000_000),
            pull_threshold_for_queue=(1, 65_535),
            pull_threshold_size_for_queue_mib=(1, 1_024),
            pull_threshold_for_topic=(-1, 6_553_500),
            pull_threshold_size_for_topic_mib=(-1, 102_400),
            pull_interval_ms=(0, 65_535),
            consume_concurrently_max_span=(1, 65_535),
            pull_delay_on_error_ms=(1, DAY_MS),
            broker_suspend_ms=(1, DAY_MS),
            pull_timeout_ms=(1, DAY_MS),
            deduplicate=(0, 1_000_000),
        )
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms={self.pull_timeout_ms}: expected more than "
                f"broker_suspend_ms={self.broker_suspend_ms}, or every idle pull times out"
            )
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

    # End of a lease, counted from the send of its last granted request. 100 ms..1 day.
    lock_max_live_ms: int = 30_000
    # Time between renewals; must be less than lock_max_live_ms. A third of the lease is the most,
    # whatever is set here, so that a second renewal comes in time. 10 ms..1 day.
    lock_interval_ms: int = 10_000
    # Stop this long before the end of the lease; at most a fifth of it. 0 ms..1 day.
    lease_margin_ms: int = 2_000
    # Longest time between requests for a lock another member holds; the first follow after 5 ms,
    # and a broker may notify the member sooner. 10 ms..1 day.
    lock_retry_ms: int = 200
    # Store the epoch of each lock at brokers that have none of their own, as all of RocketMQ's: two
    # reads and a write when a queue is taken, a write when it is given up. False spares them; then
    # `context.fence_token` raises there.
    store_epochs: bool = True

    def __post_init__(self) -> None:
        require_flags(self)
        require_range(
            self,
            lock_max_live_ms=(100, DAY_MS),
            lock_interval_ms=(10, DAY_MS),
            lease_margin_ms=(0, DAY_MS),
            lock_retry_ms=(10, DAY_MS),
        )
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

    # Threads that run listeners. 1..1000.
    consume_thread_count: int = 20
    # Largest number of messages per listener call. 1..1024.
    consume_message_batch_max_size: int = 1
    # Commit what a listener returned from; False: only what it commits itself.
    auto_commit: bool = True
    # Time between commits to the broker; 0: after every batch. 0 ms..1 day.
    commit_interval_ms: int = 5_000
    # Time after which a queue lets other queues use its thread. 1 ms..1 day.
    max_time_consume_continuously_ms: int = 60_000
    # Pause of a queue after SUSPEND or a listener's exception, in ms. 10..30000.
    suspend_current_queue_time_ms: int = 1_000
    # Ordered: attempts of one message before `on_failure`, by default the dead-letter topic;
    # 0: the number of the policy. 0..2^31.
    max_attempts: int = 0
    # Pause the consumer, until `resume()`, after so many dead letters among the last
    # `dead_letter_window` messages of a topic; 0: never. 0..1000.
    pause_after_dead_letters: int = 10
    # Messages of a topic that `pause_after_dead_letters` looks at; as many as it: dead letters in
    # a row; 0: twice as many. 0..1000000.
    dead_letter_window: int = 0
    # Time after which a revoked queue whose listener still runs is reported. 1 ms..1 day.
    drain_timeout_ms: int = 30_000
    # Retries of one message before the dead-letter topic; -1: 16 in a concurrent group, no limit
    # in an ordered one. -1..2^31 - 1.
    max_reconsume_times: int = -1
    # A listener that returns None suspends, as in Java; False: it has succeeded.
    strict_results: bool = False
    # Time after which a listener call is reported as slow; concurrent: the message is also sent
    # back. Java's number is in minutes. 1 ms..1 day.
    consume_timeout_ms: int = 900_000
    # Concurrent: pause before a local retry, if no broker took the message back. 1 ms..1 day.
    send_back_retry_ms: int = 5_000
    # Process different sharding keys of one queue concurrently.
    order_by_key: bool = False
    # By key: messages of a queue in listeners at the same time. 1..10000.
    max_in_flight_per_queue: int = 20
    # By key: finished messages beyond the oldest unfinished one. 1..2^30.
    max_ahead_per_queue: int = 2_000
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
        require_range(
            self,
            consume_thread_count=(1, 1_000),
            consume_message_batch_max_size=(1, 1_024),
            commit_interval_ms=(0, DAY_MS),
            max_time_consume_continuously_ms=(1, DAY_MS),
            suspend_current_queue_time_ms=(10, 30_000),
            max_attempts=(0, 1 << 31),
            pause_after_dead_letters=(0, 1_000),
            dead_letter_window=(0, 1_000_000),
            drain_timeout_ms=(1, DAY_MS),
            max_reconsume_times=(-1, (1 << 31) - 1),
            consume_timeout_ms=(1, DAY_MS),
            send_back_retry_ms=(1, DAY_MS),
            max_in_flight_per_queue=(1, 10_000),
            max_ahead_per_queue=(1, 1 << 30),
        )
        require_dead_letter_window(self)


class RebalanceConfig(Value, kw_only=True):
    """Allocation of queues to the members (docs/internals/semantics.md#rebalance)."""

    # Strategy: "avg", "avg_by_circle", "consistent_hash", or a function.
    allocation: Allocation | AllocationStrategy = Allocation.AVG
    # Start of a group without a committed offset: "last_offset", "first_offset" or "timestamp".
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # Start with "timestamp": in ms since 1970, a datetime (without a zone: local time), or an age
    # as "2h" or a timedelta, counted back from when the member joined; 0: half an hour.
    consume_timestamp_ms: Moment = 0
    # Time between rebalances while nothing changes. 10 ms..1 day.
    rebalance_interval_ms: int = 20_000
    # Least time between rebalances, so that many notifications cause one. 1 ms..1 day.
    rebalance_min_interval_ms: int = 5

    def __post_init__(self) -> None:
        if callable(self.allocation) and not isinstance(self.allocation, type):
            require_plain("allocation", self.allocation)
        else:
            require_choice(self, allocation=Allocation)
        require_choice(self, consume_from_where=ConsumeFromWhere)
        require_range(
            self,
            rebalance_interval_ms=(10, DAY_MS),
            rebalance_min_interval_ms=(1, DAY_MS),
        )
        require_moment(self, "consume_timestamp_ms")
        if self.consume_timestamp_ms and self.consume_from_where is not ConsumeFromWhere.TIMESTAMP:
            raise ConfigError(
                f"consume_timestamp_ms={self.consume_timestamp_ms!r} is not used with "
                f'consume_from_where="{self.consume_from_where}": set that to "timestamp"'
            )


class PopConfig(Value, kw_only=True):
    """Leases of a consumer with consume_mode="pop" (docs/internals/semantics.md#pop)."""

    # Life of the lease of a popped batch, renewed at a third of it: so long is a queue silent after
    # its member was killed or frozen. 1 s..12 h.
    pop_invisible_ms: int = 15_000
    # Time the broker may hold a pop while there is no message, and `close` may take to end it.
    # 1 ms..15 s.
    pop_poll_ms: int = 1_000
    # Messages per pop; a queue hands out the next ones when these are acknowledged. 1..32.
    pop_batch_size: int = 32

    def __post_init__(self) -> None:
        require_range(
            self,
            pop_invisible_ms=(1_000, 12 * 3_600_000),
            pop_poll_ms=(1, 15_000),
            pop_batch_size=(1, 32),
        )
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
