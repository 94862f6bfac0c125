"""Settings of producers."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from ordermq.config.checks import (
    DAY_MS,
    number,
    require_choice,
    require_flags,
    require_range,
    require_ranges,
)
from ordermq.config.client import ClientConfig
from ordermq.config.remoting import RemotingConfig
from ordermq.config.trace import TraceConfig
from ordermq.value import Value


class CompressionType(StrEnum):
    """Compression of large bodies (docs/internals/protocol.md#system-flags)."""

    ZLIB = "zlib"
    LZ4 = "lz4"  # needs the `compression` extra
    ZSTD = "zstd"  # needs the `compression` extra


class SendConfig(Value, kw_only=True):
    """Sending (docs/internals/semantics.md#ordered-sends)."""

    # Time for the response to one attempt.
    send_timeout_ms: int = number(3_000, 1, DAY_MS)
    # Retries of one message on the same queue, if its broker does not answer or is busy.
    retry_times: int = number(5, 0, 1_000)
    # Pause before the first retry, doubled before each further one up to 16 times.
    retry_delay_ms: int = number(100, 1, DAY_MS)
    # Largest body in bytes, before compression.
    max_message_bytes: int = number(4_194_304, 1, 16_000_000)
    # Bytes of bodies that are joined into one request per queue, as by `send_many`.
    max_batch_bytes: int = number(262_144, 1, 16_000_000)
    # Queues to ask for when a send creates its topic.
    default_topic_queue_nums: int = number(4, 1, 65_535)
    # Continue when the number of a topic's queues changes, although keys then change queues.
    allow_queue_change: bool = False
    # Send a message that one broker does not accept to another one, up to twice. Only for
    # messages without key and queue, outside of batches.
    retry_another_broker: bool = True
    # Avoid brokers that answered slowly, for a while. For the same messages only.
    send_latency_fault: bool = False
    # Bodies of this many bytes and more are compressed, and not sent in batches.
    compress_msg_body_over_howmuch: int = number(4_096, 1, 1 << 31)
    # Compression of bodies: "zlib", "lz4" or "zstd".
    compress_type: CompressionType = CompressionType.ZLIB
    # Level of the compression: of zlib 0..9, of zstd 1..22; lz4 has none.
    compress_level: int = 5

    def __post_init__(self) -> None:
        require_flags(self)
        require_choice(self, compress_type=CompressionType)
        require_ranges(self)
        levels = (1, 22) if self.compress_type is CompressionType.ZSTD else (0, 9)
        require_range(self, compress_level=levels)


class TransactionConfig(Value, kw_only=True):
    """Transaction checks by brokers (docs/internals/protocol.md#sending)."""

    # Threads that call the listener's `check`.
    check_thread_count: int = number(1, 1, 1_000)
    # Checks that may wait for a thread; more are dropped, and the broker repeats them.
    check_request_hold_max: int = number(2_000, 1, 1_000_000)

    def __post_init__(self) -> None:
        require_ranges(self)


class ProducerConfig(ClientConfig, kw_only=True):
    """All settings of a producer, in groups."""

    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    send: SendConfig = field(default_factory=SendConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
