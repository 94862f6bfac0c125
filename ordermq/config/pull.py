"""Settings of the pull consumers (docs/internals/protocol.md#pulling)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ordermq.config import (
    DAY_MS,
    LeaseConfig,
    MessageModel,
    PullConfig,
    RebalanceConfig,
    RemotingConfig,
)
from ordermq.config.checks import Flat, require_choice, require_flags, require_range
from ordermq.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectPullConfig:
    """Single pulls, asked for one by one (docs/internals/protocol.md#pulling); Java's defaults."""

    pull_timeout_ms: int = 10_000  # when an unanswered pull is given up
    broker_suspend_ms: int = 20_000  # how long the broker may hold a pull that waits
    suspended_pull_timeout_ms: int = 30_000  # when one of those is given up
    max_reconsume_times: int = 16  # how often a message is sent back, then dead letter

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
                f"DirectPullConfig.suspended_pull_timeout_ms={self.suspended_pull_timeout_ms}: "
                f"expected more than broker_suspend_ms={self.broker_suspend_ms}, or every idle "
                "pull times out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(Flat):
    """Everything a classic pull consumer can be told, by duty."""

    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    direct: DirectPullConfig = field(default_factory=DirectPullConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConfig:
    """What a lite pull consumer buffers, hands out and commits
    (docs/internals/protocol.md#pulling)."""

    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    poll_timeout_ms: int = 5_000  # how long a poll waits that is not told
    poll_batch_size: int = 1_024  # messages, of one queue, handed out at once
    pull_batch_size: int = 32  # messages, asked for in one pull
    pull_batch_bytes: int = 262_144  # asked for; RocketMQ's broker does not read it
    pull_threshold_for_all: int = 10_000  # messages buffered; pulling pauses above it
    pull_threshold_for_queue: int = 1_000  # of one queue, likewise
    pull_threshold_size_for_queue_mib: int = 100  # MiB of one queue, likewise
    pull_delay_on_error_ms: int = 1_000  # pause after a failed pull
    broker_suspend_ms: int = 20_000  # how long the broker may hold an empty pull
    pull_timeout_ms: int = 30_000  # when an unanswered pull is given up
    # in order: hold queues under queue locks, and hand one batch per queue out at a time
    ordered: bool = False
    drain_timeout_ms: int = 30_000  # in order: a revoked queue that drains for longer is reported

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
            drain_timeout_ms=(1, DAY_MS),
        )
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"LitePullConfig.pull_timeout_ms={self.pull_timeout_ms}: expected more than "
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig(Flat):
    """Everything a lite pull consumer can be told, by duty."""

    message_model: MessageModel = MessageModel.CLUSTERING
    local_offset_store_dir: str = "~/.rocketmq_offsets"  # of broadcasting members; as in Java
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    lite: LitePullConfig = field(default_factory=LitePullConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)

    def __post_init__(self) -> None:
        require_choice(self, message_model=MessageModel)
        if self.lite.ordered and self.message_model is MessageModel.BROADCASTING:
            raise ConfigError(
                "LitePullConfig.ordered=True is not for broadcasting: every member holds every "
                "queue, so there is no lock to take; poll with one thread"
            )
