"""Settings of message traces."""

from __future__ import annotations

from dataclasses import dataclass

from ordermq.config.checks import require_flags, require_range
from ordermq.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """Message traces: what happened to each message, as Java's clients tell it."""

    enable_msg_trace: bool = False
    customized_trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where the records go
    trace_buffer_max: int = 20_000  # records that wait; more are dropped, and counted
    trace_interval_ms: int = 1_000  # how long records wait for more at most

    def __post_init__(self) -> None:
        require_flags(self)
        if not self.customized_trace_topic:
            raise ConfigError("TraceConfig.customized_trace_topic is empty: expected a topic")
        require_range(self, trace_buffer_max=(1, 1 << 20), trace_interval_ms=(1, 86_400_000))
