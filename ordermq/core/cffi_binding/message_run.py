"""The run needs no C: it only says which rows, and a JIT makes that as fast."""

from ordermq.core.reference.message_run import MessageRun

__all__ = ["MessageRun"]
