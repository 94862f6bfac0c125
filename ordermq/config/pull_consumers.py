"""Settings of lite pull and pull consumers (docs/internals/protocol.md#pulling).

`PullConfig`, the settings of a pull loop, is in `ordermq/config/consumer.py`.
"""

from __future__ import annotations

from dataclasses import field, fields

from ordermq.config.checks import (
    DAY_MS,
    number,
    require_choice,
    require_dead_letter_window,
    require_flags,
    require_paths,
    require_ranges,
)
from ordermq.config.client import ClientConfig
from ordermq.config.consumer import (
    ConsumeMode,
    FetchConfig,
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

    # Time for the response to a pull that does not wait.
    pull_timeout_ms: int = number(10_000, 1, DAY_MS)
    # Time the broker may hold a pull that waits for a message.
    broker_suspend_ms: int = number(20_000, 1, DAY_MS)
    # Time for the response to such a pull; must exceed broker_suspend_ms.
    suspended_pull_timeout_ms: int = number(30_000, 1, DAY_MS)
    # Retries of a message sent back, before the dead-letter topic.
    max_reconsume_times: int = number(16, 0, (1 << 31) - 1)

    def __post_init__(self) -> None:
        require_ranges(self)
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


class LitePullConfig(FetchConfig, kw_only=True):
    """Polling, buffering and commits of a lite pull consumer
    (docs/internals/protocol.md#pulling).
    """

    # Commit polled messages periodically.
    auto_commit: bool = True
    # Time between these commits.
    auto_commit_interval_ms: int = number(5_000, 1, DAY_MS)
    # Longest wait of a poll without its own time-out; 0: do not wait.
    poll_timeout_ms: int = number(5_000, 0, DAY_MS)
    # Most messages of one poll; they are of one queue.
    poll_batch_size: int = number(1_024, 1, 1 << 20)
    # Buffered messages of all queues above which pulling pauses.
    pull_threshold_for_all: int = number(10_000, 1, 1 << 30)
    # Time the broker may hold a pull request while there is no message.
    broker_suspend_ms: int = number(20_000, 1, DAY_MS)
    # Hold queues under queue locks, and hand out one batch per queue at a time.
    ordered: bool = False
    # Ordered: time after which a revoked queue whose batch is still out is reported.
    drain_timeout_ms: int = number(30_000, 1, DAY_MS)
    # Ordered: pause the consumer, until `resume()`, after so many dead letters among the last
    # `dead_letter_window` messages of a topic; 0: never.
    pause_after_dead_letters: int = number(10, 0, 1_000)
    # Messages of a topic that `pause_after_dead_letters` looks at; as many as it: dead letters in
    # a row; 0: twice as many.
    dead_letter_window: int = number(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags(self)
        require_dead_letter_window(self)

    def for_fetching(self) -> PullConfig:
        """Return the settings of the pull loop."""
        return PullConfig(**{each.name: getattr(self, each.name) for each in fields(FetchConfig)})


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
