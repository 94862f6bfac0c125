"""Settings of lite pull and pull consumers (docs/internals/protocol.md#pulling).

`PullConfig`, the settings of a pull loop, is in `ordermq/config/consumer.py`.
"""

from __future__ import annotations

from dataclasses import field

from ordermq.config.checks import (
    DAY_MS,
    require_choice,
    require_dead_letter_window,
    require_flags,
    require_paths,
    require_range,
)
from ordermq.config.client import ClientConfig
from ordermq.config.consumer import (
    ConsumeMode,
    LeaseConfig,
    MessageModel,
    PopConfig,
    PullConfig,
    RebalanceConfig,
)
from ordermq.config.remoting import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.value import Value


class DirectPullConfig(Value, kw_only=True):
    """Single pulls of the classic pull consumer (docs/internals/protocol.md#pulling).

    The defaults are Java's.
    """

    # Time for the response to a pull that does not wait. 1 ms..1 day.
    pull_timeout_ms: int = 10_000
    # Time the broker may hold a pull that waits for a message. 1 ms..1 day.
    broker_suspend_ms: int = 20_000
    # Time for the response to such a pull; must exceed broker_suspend_ms. 1 ms..1 day.
    suspended_pull_timeout_ms: int = 30_000
    # Retries of a message sent back, before the dead-letter topic. 0..2^31 - 1.
    max_reconsume_times: int = 16

    def __post_init__(self) -> None:
        require_range(
            self,
            pull_timeout_ms=(1, DAY_MS),
            broker_suspend_ms=(1, DAY_MS),
            suspended_pull_timeout_ms=(1, DAY_MS),
            max_reconsume_times=(0, (1 << 31) - 1),
        )
        if self.suspended_pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"suspended_pull_timeout_ms={self.suspended_pull_timeout_ms}: "
                f"expected more than broker_suspend_ms={self.broker_suspend_ms}, or every idle "
                "pull times out"
            )


class PullConsumerConfig(ClientConfig, kw_only=True):
    """All settings of a classic pull consumer, in groups."""

    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    direct: DirectPullConfig = field(default_factory=DirectPullConfig)


class LitePullConfig(Value, kw_only=True):
    """Polling, buffering and commits of a lite pull consumer
    (docs/internals/protocol.md#pulling).
    """

    # Commit polled messages periodically.
    auto_commit: bool = True
    # Time between these commits. 1 ms..1 day.
    auto_commit_interval_ms: int = 5_000
    # Longest wait of a poll without its own time-out; 0: do not wait. 0 ms..1 day.
    poll_timeout_ms: int = 5_000
    # Most messages of one poll; they are of one queue. 1..2^20.
    poll_batch_size: int = 1_024
    # Messages per pull request. 1..1024.
    pull_batch_size: int = 32
    # Bytes per pull request; RocketMQ's broker ignores it. 1..16000000.
    pull_batch_bytes: int = 262_144
    # Buffered messages of all queues above which pulling pauses. 1..2^30.
    pull_threshold_for_all: int = 10_000
    # Buffered messages of a queue above which pulling pauses. 1..65535.
    pull_threshold_for_queue: int = 1_000
    # MiB of buffered bodies of a queue above which pulling pauses. 1..1024.
    pull_threshold_size_for_queue_mib: int = 100
    # Pause after a failed pull. 1 ms..1 day.
    pull_delay_on_error_ms: int = 1_000
    # Time the broker may hold a pull request while there is no message. 1 ms..1 day.
    broker_suspend_ms: int = 20_000
    # Time for the response to a pull; must exceed broker_suspend_ms. 1 ms..1 day.
    pull_timeout_ms: int = 30_000
    # Drop a message that a producer sent again, if its id is that of one of so many messages before
    # it; 0: off. They are read again on each take-over. 0..1000000.
    deduplicate: int = 0
    # Hold queues under queue locks, and hand out one batch per queue at a time.
    ordered: bool = False
    # Ordered: time after which a revoked queue whose batch is still out is reported. 1 ms..1 day.
    drain_timeout_ms: int = 30_000
    # Ordered: pause the consumer, until `resume()`, after so many dead letters among the last
    # `dead_letter_window` messages of a topic; 0: never. 0..1000.
    pause_after_dead_letters: int = 10
    # Messages of a topic that `pause_after_dead_letters` looks at; as many as it: dead letters in
    # a row; 0: twice as many. 0..1000000.
    dead_letter_window: int = 0

    def __post_init__(self) -> None:
        require_flags(self)
        require_range(
            self,
            auto_commit_interval_ms=(1, DAY_MS),
            poll_timeout_ms=(0, DAY_MS),
            poll_batch_size=(1, 1 << 20),
            pull_batch_size=(1, 1_024),
            pull_batch_bytes=(1, 16_000_000),
            pull_threshold_for_all=(1, 1 << 30),
            pull_threshold_for_queue=(1, 65_535),
            pull_threshold_size_for_queue_mib=(1, 1_024),
            pull_delay_on_error_ms=(1, DAY_MS),
            broker_suspend_ms=(1, DAY_MS),
            pull_timeout_ms=(1, DAY_MS),
            deduplicate=(0, 1_000_000),
            drain_timeout_ms=(1, DAY_MS),
            pause_after_dead_letters=(0, 1_000),
            dead_letter_window=(0, 1_000_000),
        )
        require_dead_letter_window(self)
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms={self.pull_timeout_ms}: expected more than "
                f"broker_suspend_ms={self.broker_suspend_ms}, or every idle pull times out"
            )

    def for_fetching(self) -> PullConfig:
        """Return the settings of the pull loop."""
        return PullConfig(
            pull_batch_size=self.pull_batch_size,
            pull_batch_bytes=self.pull_batch_bytes,
            pull_threshold_for_queue=self.pull_threshold_for_queue,
            pull_threshold_size_for_queue_mib=self.pull_threshold_size_for_queue_mib,
            pull_delay_on_error_ms=self.pull_delay_on_error_ms,
            broker_suspend_ms=self.broker_suspend_ms,
            pull_timeout_ms=self.pull_timeout_ms,
            deduplicate=self.deduplicate,
        )


class LitePullConsumerConfig(ClientConfig, kw_only=True):
    """All settings of a lite pull consumer, in groups."""

    # "clustering": one member gets a message; "broadcasting": every member does.
    message_model: MessageModel = MessageModel.CLUSTERING
    # Ordered: "pull": a member owns queues; "pop": it leases batches, on brokers of RocketMQ 5.
    consume_mode: ConsumeMode = ConsumeMode.PULL
    # Folder for the offsets of broadcasting members, as in Java.
    local_offset_store_dir: str = "~/.rocketmq_offsets"
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    lite: LitePullConfig = field(default_factory=LitePullConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    pop: PopConfig = field(default_factory=PopConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)

    def __post_init__(self) -> None:
        # Not super(): slots make a dataclass anew, and super() would know the first one.
        ClientConfig.__post_init__(self)
        require_choice(self, message_model=MessageModel, consume_mode=ConsumeMode)
        require_paths(self, "local_offset_store_dir")
        if self.lite.ordered and self.message_model is MessageModel.BROADCASTING:
            raise ConfigError(
                "ordered=True is not for broadcasting: every member holds every "
                "queue, so there is no lock to take; poll with one thread"
            )
