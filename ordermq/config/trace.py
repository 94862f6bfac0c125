"""Settings of message traces."""

from __future__ import annotations

from ordermq.config.checks import DAY_MS, require_flags, require_range
from ordermq.errors import ConfigError
from ordermq.value import Value


class TraceConfig(Value, kw_only=True):
    """Message traces: records of each send and delivery, in the format of Java's clients."""

    # Send message traces.
    enable_msg_trace: bool = False
    # Topic of the trace records.
    customized_trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    # Trace records that may wait to be sent; more are dropped and counted. 1..2^20.
    trace_buffer_max: int = 20_000
    # Longest time that records wait to be sent together. 1 ms..1 day.
    trace_interval_ms: int = 1_000

    def __post_init__(self) -> None:
        require_flags(self)
        if not self.customized_trace_topic or not isinstance(self.customized_trace_topic, str):
            raise ConfigError(
                f"customized_trace_topic={self.customized_trace_topic!r}: expected a topic"
            )
        require_range(self, trace_buffer_max=(1, 1 << 20), trace_interval_ms=(1, DAY_MS))
