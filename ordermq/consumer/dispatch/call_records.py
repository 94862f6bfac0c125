"""CallRecords: the starts and ends of listener calls, for the history (docs/internals/semantics.md
#invariants)."""

from __future__ import annotations

from ordermq import core
from ordermq.consumer.listener import ConsumeContext, Settlement, Verdict, verdict_of
from ordermq.consumer.queue.statistics import EventRecorder
from ordermq.events import EventType


class CallRecords:
    """Fulfils `core.contract.CallRecords`, for the calls of one dispatcher.

    Callers ask `recorder.enabled` first: else no message is read for it.

    Args:
        lane: most messages of a queue in listeners at the same time, where calls are by key.
    """

    def __init__(self, recorder: EventRecorder, lane: int = 0) -> None:
        self._recorder = recorder
        self.lines: core.contract.EventLines | None = recorder.lines
        self.lane = lane

    def line_head(self, context: ConsumeContext) -> bytes:
        """Return what the lines of a queue and a lease have in common."""
        return self._recorder.line_head(context.message_queue, context.claim.lease.epoch)

    def started(self, context: ConsumeContext) -> None:
        """Record the start of a call."""
        lane = {"lane": self.lane} if self.lane else {}
        self._recorder.record_messages(
            EventType.START,
            context.message_queue,
            context.claim.lease.epoch,
            context.messages,
            attempt=context.attempt,
            **lane,
        )

    def succeeded(self, context: ConsumeContext) -> None:
        """Record the end of a call that has done all of its messages, and was not judged."""
        held = not context.auto_commit
        settlement = Settlement.HOLD if held else Settlement.DONE
        self.ended(context, verdict_of(settlement, len(context.messages)))

    def ended(self, context: ConsumeContext, verdict: Verdict, detail: str = "") -> None:
        """Record the end of a call. Args: detail: default the name of the settlement."""
        self._recorder.record_messages(
            EventType.END,
            context.message_queue,
            context.claim.lease.epoch,
            context.messages,
            done=verdict.done,
            detail=detail or verdict.settlement.name,
        )
