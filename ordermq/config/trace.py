"""Settings of message traces."""

from __future__ import annotations

from ordermq.config.checks import DAY_MS, number, require_flags, require_ranges
from ordermq.errors import ConfigError
from ordermq.value import Value


class TraceConfig(Value, kw_only=True):
    """Message traces: records of each send and delivery, in the format of Java's clients."""

    # Send message traces.
    enable_msg_trace: bool = False
    # Topic of the trace records.
    customized_trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    # Trace records that may wait to be sent; more are dropped and counted.
    trace_buffer_max: int = number(20_000, 1, 1 << 20)
    # Longest time that records wait to be sent together.
    trace_interval_ms: int = number(1_000, 1, DAY_MS)

    def __post_init__(self) -> None:
        require_flags(self)
        if not self.customized_trace_topic or not isinstance(self.customized_trace_topic, str):
            raise ConfigError(
                f"customized_trace_topic={self.customized_trace_topic!r}: expected a topic"
            )
        require_ranges(self)
