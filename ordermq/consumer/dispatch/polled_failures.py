"""PolledFailures: failed batches of a polling consumer, treated as those of a listener
(docs/failures.md)."""

from __future__ import annotations

import logging

from ordermq.consumer.dispatch.consume_loop import BatchLeft
from ordermq.consumer.dispatch.failure_policy import FailureHandler, NextStep
from ordermq.consumer.listener import ConsumeContext, Settlement, Verdict
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import BatchClaim
from ordermq.consumer.queue.poll_buffer import PollBuffer
from ordermq.consumer.queue.polled_queue import PolledQueue
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.model.log_fields import log_fields

_log = logging.getLogger("ordermq.consumer")
_ERROR_PAUSE_MS = 1_000
_LEFT = "its poller left the batch without saying whether it is done"


class PolledFailures:
    """Counts failed batches and carries the failure policy out; fulfils `PollFailures`.

    Args:
        buffer: that the batches are from.
    """

    def __init__(
        self,
        member: MemberContext,
        handler: FailureHandler,
        buffer: PollBuffer,
        offsets: OffsetCommitter,
    ) -> None:
        self._client = member.client
        self._handler = handler
        self._buffer = buffer
        self._statistics = member.statistics
        self._offsets = offsets

    def failed(self, assigned: PolledQueue, claim: BatchClaim, error: BaseException | None) -> None:
        run, error = claim.messages, error or BatchLeft(_LEFT)
        self._statistics.consumed(assigned.queue, 0, len(run), 1, 0)
        attempt = assigned.attempts.get(run.first_offset, 0)
        context = ConsumeContext(assigned, claim, run, attempt)
        verdict = Verdict(Settlement.RETRY, 0, error)
        step = self._handler.next_step(assigned, context, verdict)
        self._client.runtime.post(
            lambda: self._client.runtime.spawn(
                self._settle(assigned, context, step, error), f"failed batch of {assigned.queue}"
            )
        )

    async def _settle(
        self,
        assigned: PolledQueue,
        context: ConsumeContext,
        step: NextStep,
        error: BaseException,
    ) -> None:
        # The batch stays out until here: a revocation waits for the letter, and no later message
        # of the queue is handed out before the pause is over.
        clock, claim, done, delay_ms = self._client.clock, context.claim, 0, _ERROR_PAUSE_MS
        try:
            if step is NextStep.DEAD_LETTER:
                done += await self._handler.dead_letter(assigned, claim, context.messages[0], error)
            delay_ms = 0 if done else self._handler.delay_ms(assigned, context)
        except Exception:  # noqa: BLE001 - logged; a batch that stays out would stop the queue
            self._tell_internal_error(assigned, context)
        counts = assigned.end_batch(claim, done, clock.now_ms())
        self._buffer.settled(claim)
        if not counts:
            return
        if done:  # a crash before the next commit would store the letter a second time
            try:
                await self._offsets.commit_last(assigned)
            except Exception:  # noqa: BLE001 - logged; the next commit stores it
                self._tell_internal_error(assigned, context)
        if step is NextStep.STOP:
            self._handler.stop(assigned, context.messages.first_offset)
            return
        # The dispatch flag is kept meanwhile: whatever arrives submits the queue no second time.
        await clock.sleep_ms(delay_ms)
        self._buffer.submit_again(assigned)

    def _tell_internal_error(self, assigned: PolledQueue, context: ConsumeContext) -> None:
        self._statistics.add("internal_errors")
        offset = context.messages.first_offset
        _log.exception(
            "%s: internal error while a failed batch was settled at offset %d (please report)",
            assigned.queue,
            offset,
            extra=log_fields(assigned.queue, offset=offset),
        )
