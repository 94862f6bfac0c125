"""Settings of each client as keywords, for type checkers and editors.

Written by ci/settings_types.py from the configurations; `ProducerConfig.of` checks them at runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict

from ordermq.config import (
    Allocation,
    AllocationStrategy,
    CompressionType,
    ConsumeConfig,
    ConsumeFromWhere,
    ConsumeMode,
    DirectPullConfig,
    Keyless,
    LeaseConfig,
    LitePullConfig,
    MessageModel,
    PopConfig,
    PullConfig,
    RebalanceConfig,
    RemotingConfig,
    SendConfig,
    SerializeType,
    TlsVerify,
    TraceConfig,
    TransactionConfig,
)

if TYPE_CHECKING:
    from ordermq.wall_time import Moment


class RemotingSettings(TypedDict, total=False):
    """Keywords of `Admin`."""

    connect_timeout_ms: int
    request_timeout_ms: int
    offset_timeout_ms: int
    lock_timeout_ms: int
    reconnect_delay_ms: int
    max_frame_bytes: int
    check_crcs: bool
    max_decompressed_bytes: int
    heartbeat_interval_ms: int
    route_interval_ms: int
    forget_broker_after_ms: int
    address_map: Mapping[str, str] | str
    access_key: str
    secret_key: str
    security_token: str
    namespace: str
    namespace_v2: str
    unit_name: str
    unit_mode: bool
    serialize_type: SerializeType | Literal["json", "rocketmq"]
    client_ip: str
    tls: bool
    tls_verify: TlsVerify | Literal["full", "ca", "none"]
    tls_ca_file: str
    tls_certificate: str
    tls_key: str


class ProducerSettings(RemotingSettings, total=False):
    """Keywords of `Producer`."""

    remoting: RemotingConfig
    send: SendConfig
    transaction: TransactionConfig
    trace: TraceConfig
    send_timeout_ms: int
    retry_times: int
    retry_delay_ms: int
    max_message_bytes: int
    max_batch_bytes: int
    default_topic_queue_nums: int
    allow_queue_change: bool
    retry_another_broker: bool
    send_latency_fault: bool
    compress_msg_body_over_howmuch: int
    compress_type: CompressionType | Literal["zlib", "lz4", "zstd"]
    compress_level: int
    check_thread_count: int
    check_request_hold_max: int
    enable_msg_trace: bool
    customized_trace_topic: str
    trace_buffer_max: int
    trace_interval_ms: int


class ConsumerSettings(RemotingSettings, total=False):
    """Keywords of `PushConsumer`."""

    message_model: MessageModel | Literal["clustering", "broadcasting"]
    consume_mode: ConsumeMode | Literal["pull", "pop"]
    local_offset_store_dir: str
    remoting: RemotingConfig
    pull: PullConfig
    lease: LeaseConfig
    pop: PopConfig
    consume: ConsumeConfig
    rebalance: RebalanceConfig
    trace: TraceConfig
    pull_batch_size: int
    pull_batch_bytes: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_mib: int
    pull_delay_on_error_ms: int
    broker_suspend_ms: int
    pull_timeout_ms: int
    deduplicate: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_topic_mib: int
    pull_interval_ms: int
    consume_concurrently_max_span: int
    lock_max_live_ms: int
    lock_interval_ms: int
    lease_margin_ms: int
    lock_retry_ms: int
    store_epochs: bool
    pop_invisible_ms: int
    pop_poll_ms: int
    pop_batch_size: int
    consume_thread_count: int
    consume_message_batch_max_size: int
    auto_commit: bool
    commit_interval_ms: int
    max_time_consume_continuously_ms: int
    suspend_current_queue_time_ms: int
    max_attempts: int
    pause_after_dead_letters: int
    dead_letter_window: int
    drain_timeout_ms: int
    max_reconsume_times: int
    strict_results: bool
    consume_timeout_ms: int
    send_back_retry_ms: int
    order_by_key: bool
    max_in_flight_per_queue: int
    max_ahead_per_queue: int
    keyless: Keyless | Literal["lane", "barrier"]
    allocation: Allocation | Literal["avg", "avg_by_circle", "consistent_hash"] | AllocationStrategy
    consume_from_where: ConsumeFromWhere | Literal["last_offset", "first_offset", "timestamp"]
    consume_timestamp_ms: Moment
    rebalance_interval_ms: int
    rebalance_min_interval_ms: int
    enable_msg_trace: bool
    customized_trace_topic: str
    trace_buffer_max: int
    trace_interval_ms: int


class LitePullConsumerSettings(RemotingSettings, total=False):
    """Keywords of `LitePullConsumer`."""

    message_model: MessageModel | Literal["clustering", "broadcasting"]
    consume_mode: ConsumeMode | Literal["pull", "pop"]
    local_offset_store_dir: str
    remoting: RemotingConfig
    lite: LitePullConfig
    lease: LeaseConfig
    pop: PopConfig
    rebalance: RebalanceConfig
    pull_batch_size: int
    pull_batch_bytes: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_mib: int
    pull_delay_on_error_ms: int
    broker_suspend_ms: int
    pull_timeout_ms: int
    deduplicate: int
    auto_commit: bool
    auto_commit_interval_ms: int
    poll_timeout_ms: int
    poll_batch_size: int
    pull_threshold_for_all: int
    ordered: bool
    drain_timeout_ms: int
    pause_after_dead_letters: int
    dead_letter_window: int
    lock_max_live_ms: int
    lock_interval_ms: int
    lease_margin_ms: int
    lock_retry_ms: int
    store_epochs: bool
    pop_invisible_ms: int
    pop_poll_ms: int
    pop_batch_size: int
    allocation: Allocation | Literal["avg", "avg_by_circle", "consistent_hash"] | AllocationStrategy
    consume_from_where: ConsumeFromWhere | Literal["last_offset", "first_offset", "timestamp"]
    consume_timestamp_ms: Moment
    rebalance_interval_ms: int
    rebalance_min_interval_ms: int


class PullConsumerSettings(RemotingSettings, total=False):
    """Keywords of `PullConsumer`."""

    remoting: RemotingConfig
    direct: DirectPullConfig
    pull_timeout_ms: int
    broker_suspend_ms: int
    suspended_pull_timeout_ms: int
    max_reconsume_times: int


class AsyncConsumerSettings(ConsumerSettings, LitePullConsumerSettings, total=False):
    """Keywords of `AsyncConsumer`; some are only for a listener, some only for iteration."""
