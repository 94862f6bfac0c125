"""Settings of producers."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from ordermq.config.checks import (
    DAY_MS,
    require_choice,
    require_flags,
    require_range,
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

    # Time for the response to one attempt. 1 ms..1 day.
    send_timeout_ms: int = 3_000
    # Retries of one message on the same queue, if its broker does not answer or is busy. 0..1000.
    retry_times: int = 5
    # Pause before the first retry, doubled before each further one up to 16 times. 1 ms..1 day.
    retry_delay_ms: int = 100
    # Largest body in bytes, before compression. 1..16000000.
    max_message_bytes: int = 4_194_304
    # Bytes of bodies that are joined into one request per queue, as by `send_many`. 1..16000000.
    max_batch_bytes: int = 262_144
    # Queues to ask for when a send creates its topic. 1..65535.
    default_topic_queue_nums: int = 4
    # Continue when the number of a topic's queues changes, although keys then change queues.
    allow_queue_change: bool = False
    # Send a message that one broker does not accept to another one, up to twice. Only for
    # messages without key and queue, outside of batches.
    retry_another_broker: bool = True
    # Avoid brokers that answered slowly, for a while. For the same messages only.
    send_latency_fault: bool = False
    # Bodies of this many bytes and more are compressed, and not sent in batches. 1..2^31.
    compress_msg_body_over_howmuch: int = 4_096
    # Compression of bodies: "zlib", "lz4" or "zstd".
    compress_type: CompressionType = CompressionType.ZLIB
    # Level of the compression: of zlib 0..9, of zstd 1..22; lz4 has none.
    compress_level: int = 5

    def __post_init__(self) -> None:
        require_flags(self)
        require_choice(self, compress_type=CompressionType)
        require_range(
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


class TransactionConfig(Value, kw_only=True):
    """Transaction checks by brokers (docs/internals/protocol.md#sending)."""

    # Threads that call the listener's `check`. 1..1000.
    check_thread_count: int = 1
    # Checks that may wait for a thread; more are dropped, and the broker repeats them. 1..1000000.
    check_request_hold_max: int = 2_000

    def __post_init__(self) -> None:
        require_range(self, check_thread_count=(1, 1_000), check_request_hold_max=(1, 1_000_000))


class ProducerConfig(ClientConfig, kw_only=True):
    """All settings of a producer, in groups."""

    remoting: RemotingConfig = field(default_factory=RemotingConfig)
    send: SendConfig = field(default_factory=SendConfig)
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
