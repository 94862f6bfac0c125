"""Settings: frozen dataclasses, RocketMQ's names, the unit in the name.

A value out of its range raises `ConfigError` at construction, naming field and range.
Defaults come from `semantics.md` (the section is on each class).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ordermq.config.checks import Flat as _Flat
from ordermq.config.checks import require_choice as _require_choice
from ordermq.config.checks import require_flags as _require_flags
from ordermq.config.checks import require_names as _require_names
from ordermq.config.checks import require_range as _require_range
from ordermq.config.trace import TraceConfig
from ordermq.errors import ConfigError

DAY_MS = 86_400_000
SERIALIZE_TYPE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"


def _require_credentials(config: RemotingConfig) -> None:
    texts = (config.access_key, config.secret_key, config.security_token)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("RemotingConfig.access_key, secret_key, security_token: expected texts")
    if bool(config.access_key) != bool(config.secret_key):
        missing = "secret_key" if config.access_key else "access_key"
        raise ConfigError(f"RemotingConfig.{missing} is missing: give both keys, or none")
    if config.security_token and not config.access_key:
        raise ConfigError("RemotingConfig.security_token needs access_key and secret_key beside it")


class MessageModel(StrEnum):
    """Who gets a message: one member of the group, or every member."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class ConsumeFromWhere(StrEnum):
    """Where a group without a stored offset begins (docs/internals/semantics.md#rebalance)."""

    LAST_OFFSET = "last_offset"
    FIRST_OFFSET = "first_offset"
    TIMESTAMP = "timestamp"


class Allocation(StrEnum):
    """How the queues of a topic are shared among the members
    (docs/internals/semantics.md#rebalance).

    Those that need to be told more are in `ordermq.consumer.group.allocation`.
    """

    AVG = "avg"
    AVG_BY_CIRCLE = "avg_by_circle"
    CONSISTENT_HASH = "consistent_hash"


# (message queues of a topic, sorted; client ids of the members, sorted; one's own id) -> share.
AllocationStrategy = Callable[[Sequence[Any], Sequence[str], str], list[Any]]


class Keyless(StrEnum):
    """What a message without a sharding key is to the lanes of its queue
    (docs/internals/semantics.md#key-lanes)."""

    LANE = "lane"  # all without a key are one lane beside the others
    BARRIER = "barrier"  # it waits until all before it is done, runs alone, all behind it waits


class Durability(StrEnum):
    """When the embedded broker acknowledges a write."""

    FSYNC = "fsync"  # after the disk has it
    OS = "os"  # after the operating system has it: survives kill -9, not a power cut


class SerializeType(StrEnum):
    """How the headers of our commands are written; either is read at any time
    (docs/internals/protocol.md#framing)."""

    JSON = "json"
    ROCKETMQ = "rocketmq"  # the binary form, shorter


def _serialize_type() -> SerializeType:
    """What the environment says, as RocketMQ's clients read it; JSON if it says nothing."""
    text = os.environ.get(SERIALIZE_TYPE_VARIABLE, "").strip()
    try:
        return SerializeType(text.lower() or SerializeType.JSON)
    except ValueError:
        raise ConfigError(
            f"{SERIALIZE_TYPE_VARIABLE}={text!r} in the environment: expected JSON or ROCKETMQ"
        ) from None


class TlsVerify(StrEnum):
    """What a client asks of a server's certificate."""

    FULL = "full"  # a trusted one, and for the host we connect to
    CA = "ca"  # a trusted one, whatever its host, as Java's client
    NONE = "none"  # any: what is sent cannot be read by others, but whose server it is stays open


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingConfig(_Flat):
    """Connections and requests (docs/internals/protocol.md#time-outs)."""

    connect_timeout_ms: int = 3_000  # to open a connection
    request_timeout_ms: int = 3_000  # route, heartbeat, member list
    offset_timeout_ms: int = 5_000  # query and commit of consumer offsets
    lock_timeout_ms: int = 1_000  # lock and unlock of queues
    reconnect_delay_ms: int = 200  # pause after a failed connect, doubled up to 16 times this
    max_frame_bytes: int = 16_777_216  # a longer frame closes the connection
    heartbeat_interval_ms: int = 30_000
    route_interval_ms: int = 30_000  # how often known topics' routes are asked again
    # the account that signs requests (docs/internals/protocol.md#signed-requests); empty: none
    # does
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)  # of a temporary account
    namespace: str = ""  # of RocketMQ 4: topics and groups are `namespace%name` at brokers
    namespace_v2: str = ""  # of RocketMQ 5: told with each request, beside plain names
    unit_name: str = ""  # the unit of a multi-unit deployment; part of the client id
    unit_mode: bool = False  # topics and retry topics that we make are marked as units'
    serialize_type: SerializeType = field(default_factory=_serialize_type)
    client_ip: str = ""  # of the client id; empty: the address we reach name servers from
    tls: bool = False
    tls_verify: TlsVerify = TlsVerify.FULL
    tls_ca_file: str = ""  # PEM; who may sign servers' certificates; empty: who the system trusts
    tls_certificate: str = ""  # PEM; ours, where servers ask for one
    tls_key: str = ""  # PEM; of tls_certificate, if that file does not hold it too

    def __post_init__(self) -> None:
        _require_flags(self)
        _require_credentials(self)
        _require_names(self, "namespace", "namespace_v2", "unit_name")
        if not isinstance(self.client_ip, str):
            raise ConfigError(f"RemotingConfig.client_ip={self.client_ip!r}: expected an address")
        _require_choice(self, tls_verify=TlsVerify, serialize_type=SerializeType)
        for name in ("tls_ca_file", "tls_certificate", "tls_key"):
            if getattr(self, name) and not self.tls:
                raise ConfigError(f"RemotingConfig.{name} is given without tls=True")
        if self.tls_key and not self.tls_certificate:
            raise ConfigError("RemotingConfig.tls_key is given without tls_certificate")
        _require_range(
            self,
            connect_timeout_ms=(1, DAY_MS),
            request_timeout_ms=(1, DAY_MS),
            offset_timeout_ms=(1, DAY_MS),
            lock_timeout_ms=(1, DAY_MS),
            reconnect_delay_ms=(1, DAY_MS),
            max_frame_bytes=(1_024, 1 << 30),
            heartbeat_interval_ms=(10, DAY_MS),
            route_interval_ms=(10, DAY_MS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig:
    """Flow control of the pull loop, per queue (docs/internals/semantics.md#pull-loop)."""

    pull_batch_size: int = 32  # messages, asked for in one pull
    pull_batch_bytes: int = 262_144  # asked for; RocketMQ's broker does not read it
    pull_threshold_for_queue: int = 1_000  # messages buffered; pulling pauses above it
    pull_threshold_size_for_queue_mib: int = 100  # MiB of bodies buffered, likewise
    pull_threshold_for_topic: int = -1  # messages; divided over our queues of a topic, if not -1
    pull_threshold_size_for_topic_mib: int = -1  # MiB of bodies, likewise
    pull_interval_ms: int = 0  # pause after a pull that brought messages
    consume_concurrently_max_span: int = 2_000  # offsets from the oldest unfinished, likewise
    pull_delay_on_error_ms: int = 1_000  # pause after a failed pull
    broker_suspend_ms: int = 15_000  # how long the broker may hold an empty pull
    pull_timeout_ms: int = 30_000  # when an unanswered pull is given up

    def __post_init__(self) -> None:
        _require_range(
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
        )
        if self.pull_timeout_ms <= self.broker_suspend_ms:
            raise ConfigError(
                f"PullConfig.pull_timeout_ms={self.pull_timeout_ms}: expected more than "
                f"broker_suspend_ms={self.broker_suspend_ms}, or every idle pull times out"
            )
        for name in ("pull_threshold_for_topic", "pull_threshold_size_for_topic_mib"):
            if getattr(self, name) == 0:
                raise ConfigError(f"PullConfig.{name}=0: expected -1 (none) or more than 0")

    def for_one_of(self, queues: int) -> PullConfig:
        """The thresholds of one of so many queues of a topic
        (docs/internals/semantics.md#pull-loop)."""
        messages, mib = self.pull_threshold_for_topic, self.pull_threshold_size_for_topic_mib
        changed: dict[str, int] = {}
        if messages != -1:
            changed["pull_threshold_for_queue"] = min(max(messages // queues, 1), 65_535)
        if mib != -1:
            changed["pull_threshold_size_for_queue_mib"] = min(max(mib // queues, 1), 1_024)
        return replace(self, **changed) if changed else self


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """Queue leases (docs/internals/semantics.md#leases-and-renewal,
    docs/internals/semantics.md#fencing).

    A broker that says how long its own locks live (the embedded one does) shortens both
    times to half and a third of that, so that a client always stops before another starts.
    """

    lock_max_live_ms: int = 30_000  # a lease ends so long after the send of its last grant
    lock_interval_ms: int = 20_000  # renewal
    lease_margin_ms: int = 2_000  # stop this long before the end; a fifth of short leases
    lock_retry_ms: int = 200  # a refused lock is asked for again; brokers may wake us sooner

    def __post_init__(self) -> None:
        _require_range(
            self,
            lock_max_live_ms=(100, DAY_MS),
            lock_interval_ms=(10, DAY_MS),
            lease_margin_ms=(0, DAY_MS),
            lock_retry_ms=(10, DAY_MS),
        )
        if self.lock_interval_ms >= self.lock_max_live_ms:
            raise ConfigError(
                f"LeaseConfig.lock_interval_ms={self.lock_interval_ms}: expected less than "
                f"lock_max_live_ms={self.lock_max_live_ms}, or leases end between renewals"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeConfig:
    """The consume services: orderly (docs/internals/semantics.md#orderly-consumption), concurrent
    (docs/internals/semantics.md#concurrent-consumption)."""

    consume_thread_count: int = 20  # worker threads that run listeners
    consume_message_batch_max_size: int = 1  # messages a listener call
    auto_commit: bool = True
    commit_interval_ms: int = 5_000  # how often done offsets go to the broker; 0 = every batch
    max_time_consume_continuously_ms: int = 60_000  # then other queues get the thread
    suspend_current_queue_time_ms: int = 1_000  # pause after SUSPEND, clamped to 10..30000
    max_attempts: int = 0  # tries of one message before `on_failure`; 0 = without end
    drain_timeout_ms: int = 30_000  # a revoked queue still running after this is reported
    max_reconsume_times: int = 16  # concurrent: how often a message is sent back, then dead letter
    consume_timeout_ms: int = 900_000  # a call that runs longer is told of; concurrent: sent back
    send_back_retry_ms: int = 5_000  # concurrent: when no broker took a message back, tried here
    # orderly: keys of one queue run beside each other (docs/internals/semantics.md#key-lanes)
    order_by_key: bool = False
    max_in_flight_per_queue: int = 20  # by key: messages of a queue with listeners at once
    max_ahead_per_queue: int = 2_000  # by key: offsets done above the oldest unfinished, at most
    keyless: Keyless = Keyless.LANE  # by key: what messages without a sharding key are

    def __post_init__(self) -> None:
        _require_flags(self)
        _require_choice(self, keyless=Keyless)
        if self.order_by_key and not self.auto_commit:
            raise ConfigError(
                "ConsumeConfig.order_by_key=True needs auto_commit: what a COMMIT would "
                "cover is not known while other keys run"
            )
        _require_range(
            self,
            consume_thread_count=(1, 1_000),
            consume_message_batch_max_size=(1, 1_024),
            commit_interval_ms=(0, DAY_MS),
            max_time_consume_continuously_ms=(1, DAY_MS),
            suspend_current_queue_time_ms=(10, 30_000),
            max_attempts=(0, 1 << 31),
            drain_timeout_ms=(1, DAY_MS),
            max_reconsume_times=(0, (1 << 31) - 1),
            consume_timeout_ms=(1, DAY_MS),
            send_back_retry_ms=(1, DAY_MS),
            max_in_flight_per_queue=(1, 10_000),
            max_ahead_per_queue=(1, 1 << 30),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceConfig:
    """Sharing queues among the members (docs/internals/semantics.md#rebalance)."""

    allocation: Allocation | AllocationStrategy = Allocation.AVG
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int = 0  # ms since 1970, for TIMESTAMP; 0 = half an hour ago
    rebalance_interval_ms: int = 20_000  # between passes nothing asked for
    rebalance_min_interval_ms: int = 5  # between passes at all; a storm of notices makes one

    def __post_init__(self) -> None:
        if not callable(self.allocation):
            _require_choice(self, allocation=Allocation)
        _require_choice(self, consume_from_where=ConsumeFromWhere)
        _require_range(
            self,
            consume_timestamp_ms=(0, 1 << 62),
            rebalance_interval_ms=(10, DAY_MS),
            rebalance_min_interval_ms=(1, DAY_MS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(_Flat):
    """Everything a push consumer can be told, by duty."""

    message_model: MessageModel = MessageModel.CLUSTERING
    local_offset_store_dir: str = "~/.rocketmq_offsets"  # of broadcasting members; as in Java
    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    pull: PullConfig = field(default_factory=PullConfig)
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    consume: ConsumeConfig = field(default_factory=ConsumeConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        _require_choice(self, message_model=MessageModel)


class CompressionType(StrEnum):
    """How large bodies are compressed (docs/internals/protocol.md#system-flags)."""

    ZLIB = "zlib"
    LZ4 = "lz4"  # this and the next need the `compression` extra
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConfig:
    """Sending (docs/internals/semantics.md#ordered-sends)."""

    send_timeout_ms: int = 3_000  # one try
    retry_times: int = 5  # re-sends of one message to the same queue after a time-out
    retry_delay_ms: int = 100  # before the first of them, doubled each time up to 16 times this
    max_message_bytes: int = 4_194_304  # body, before compression
    max_batch_bytes: int = 262_144  # bodies `send_many` joins into one request of a queue
    default_topic_queue_nums: int = 4  # queues asked for when the topic is created by a send
    allow_queue_change: bool = False  # go on when a topic's queues change: keys move
    # Both for messages without a key, and with no queue named, that go alone:
    retry_another_broker: bool = True  # what one broker does not take goes to another, twice
    send_latency_fault: bool = False  # leave slow brokers out of the turns for a while
    compress_msg_body_over_howmuch: int = 4_096  # bytes; such a body is compressed, in no batch
    compress_type: CompressionType = CompressionType.ZLIB
    compress_level: int = 5  # of zlib 0..9, of zstd 1..22; lz4 has none

    def __post_init__(self) -> None:
        _require_flags(self)
        _require_choice(self, compress_type=CompressionType)
        _require_range(
            self,
            send_timeout_ms=(1, DAY_MS),
            retry_times=(0, 1_000),
            retry_delay_ms=(1, DAY_MS),
            max_message_bytes=(1, 16_000_000),
            max_batch_bytes=(1, 16_000_000),
            default_topic_queue_nums=(1, 65_535),
            compress_msg_body_over_howmuch=(1, 1 << 31),
            compress_level=(1, 22) if self.compress_type is CompressionType.ZSTD else (0, 9),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Answering brokers that ask how a transaction stands (docs/internals/protocol.md#sending)."""

    check_thread_count: int = 1  # threads that run the listener's `check`
    check_request_hold_max: int = 2_000  # questions that wait for them; more are dropped

    def __post_init__(self) -> None:
        _require_range(self, check_thread_count=(1, 1_000), check_request_hold_max=(1, 1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(_Flat):
    """Everything a producer can be told, by duty."""

    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    send: SendConfig = field(default_factory=SendConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The embedded broker."""

    broker_name: str = "embedded"
    cluster_name: str = "DefaultCluster"
    durability: Durability = Durability.FSYNC
    lock_max_live_ms: int = 60_000  # a queue lock not renewed for so long is anybody's
    auto_create_topics: bool = True
    default_queue_count: int = 8  # of a topic created by its first send, at most
    client_expiry_ms: int = 120_000  # a member without heartbeat is dropped
    client_scan_interval_ms: int = 10_000  # how often members and locks are swept
    pull_recheck_interval_ms: int = 5_000  # sweep of held pulls
    max_message_bytes: int = 4_194_304
    max_frame_bytes: int = 16_777_216
    max_pull_messages: int = 1_024  # in one answer, whatever was asked for
    max_pull_bytes: int = 1_048_576  # likewise
    group_commit_max: int = 4_096  # writes joined into one transaction
    retry_max_times: int = 16  # of a group, before the dead-letter topic
    retention_ms: int = 0  # older messages go; 0 keeps them (RocketMQ's keeps 72 hours)
    retention_bytes: int = 0  # of the store; the oldest messages go while it is larger; 0: never
    retention_interval_ms: int = 60_000  # how often both are looked at
    timer_max_delay_ms: int = 3 * DAY_MS  # how far ahead a timed message may be due
    transaction_timeout_ms: int = 6_000  # a half message older than this is asked about
    transaction_check_interval_ms: int = 30_000  # how often
    transaction_check_max: int = 15  # questions without a clear answer before it is given up
    transaction_max_age_ms: int = 3 * DAY_MS  # likewise, where no producer was there to ask
    # A group without an offset begins a queue that still has its first message there, as with
    # RocketMQ's broker (rmq#9083); else its consume_from_where decides alone.
    new_groups_start_at_zero: bool = False
    young_queues_from_zero: bool = False  # deprecated name of new_groups_start_at_zero
    # Access key -> secret key; not empty: only what one of these signed is served
    # (docs/internals/protocol.md#signed-requests).
    accounts: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls_certificate: str = ""  # PEM; not empty: only TLS connections are taken
    tls_key: str = ""  # PEM; of tls_certificate, if that file does not hold it too
    tls_client_ca_file: str = ""  # PEM; not empty: clients need a certificate signed by one of it

    def __post_init__(self) -> None:
        _require_flags(self)
        if self.young_queues_from_zero:
            warnings.warn(
                "BrokerConfig.young_queues_from_zero is deprecated: use new_groups_start_at_zero",
                DeprecationWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "new_groups_start_at_zero", True)
            # Taken back: else `replace` of this config would warn again, and two configs that
            # mean the same would differ.
            object.__setattr__(self, "young_queues_from_zero", False)
        for name in ("tls_key", "tls_client_ca_file"):
            if getattr(self, name) and not self.tls_certificate:
                raise ConfigError(f"BrokerConfig.{name} is given without tls_certificate")
        if not all(
            isinstance(text, str) and text for pair in self.accounts.items() for text in pair
        ):
            raise ConfigError("BrokerConfig.accounts: expected access keys and their secret keys")
        _require_choice(self, durability=Durability)
        _require_range(
            self,
            lock_max_live_ms=(100, DAY_MS),
            default_queue_count=(1, 65_535),
            client_expiry_ms=(10, DAY_MS),
            client_scan_interval_ms=(10, DAY_MS),
            pull_recheck_interval_ms=(10, DAY_MS),
            max_message_bytes=(1, 16_000_000),
            max_frame_bytes=(1_024, 1 << 30),
            max_pull_messages=(1, 65_535),
            max_pull_bytes=(1, 16_000_000),
            group_commit_max=(1, 1 << 20),
            retry_max_times=(0, 1 << 31),
            retention_ms=(0, 3_650 * DAY_MS),
            retention_bytes=(0, 1 << 62),
            retention_interval_ms=(10, DAY_MS),
            timer_max_delay_ms=(1_000, 3_650 * DAY_MS),
            transaction_timeout_ms=(1, DAY_MS),
            transaction_check_interval_ms=(10, DAY_MS),
            transaction_check_max=(1, 1_000),
            transaction_max_age_ms=(1, 365 * DAY_MS),
        )
