"""KeyOrderedDispatcher: calls the listener for several keys of a queue at once, in order per key
(docs/internals/semantics.md#key-lanes).

A worker that serves a queue claims the messages of one listener call, submits the queue for a
further worker if another key may run, and only then calls the listener. So the number of calls
grows with the keys that have messages, up to `max_in_flight_per_queue`. Messages finish in any
order; the commit goes up to the oldest one that is not done.
"""

from __future__ import annotations

import logging
import shlex
from functools import cached_property
from typing import Any

from ordermq import core
from ordermq.config import ConsumeConfig
from ordermq.consumer.dispatch.consume_loop import (
    MOST_UNREPORTED,
    DispatcherParts,
    OnIoThread,
    Outcome,
    Settling,
    Steps,
)
from ordermq.consumer.dispatch.failure_policy import FailurePolicy, NextStep
from ordermq.consumer.dispatch.orderly import OrderedDispatcher
from ordermq.consumer.dispatch.parked_keys import ParkedKeys
from ordermq.consumer.dispatch.worker_pool import Serving
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.consumer.queue.assigned_queue import (
    BatchClaim,
    QueueCallbacks,
)
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.events import EventType
from ordermq.leases.lease import Lease
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.consumer")


class KeyOrderedDispatcher(OrderedDispatcher[KeyOrderedQueue]):
    """Calls a listener for each key in order, several keys at once; fulfils `Receiver`."""

    def __init__(
        self, parts: DispatcherParts, on_failure: FailurePolicy, offsets: OffsetCommitter
    ) -> None:
        super().__init__(parts, on_failure, offsets)
        self._plan = self._make_plan(
            self._batch_size,
            is_shared=True,
            is_judged=self._judges_all,
            commits_each=self._commits_each,
            most_unreported=MOST_UNREPORTED,
        )

    def _most_in_lanes(self, config: ConsumeConfig) -> int:
        return config.max_in_flight_per_queue

    @cached_property
    def _parked(self) -> ParkedKeys | None:
        """The parking topic, if the failure policy has one."""
        topic = self._failure_handler.parking_topic
        if not topic:
            return None
        return ParkedKeys(self._member, topic, self._call_parked, self.submit)

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> KeyOrderedQueue:
        return KeyOrderedQueue(queue, self._group, lease, offset, self._config, callbacks)

    async def prepare(self, assigned: KeyOrderedQueue) -> None:
        # Before the first pull: a newer message of a parked key must not run ahead of those that
        # an earlier owner has moved to the parking topic.
        if self._parked is not None:
            await self._parked.restore(assigned)

    def unpark(self, assigned: KeyOrderedQueue, key: bytes) -> bool:
        if self._parked is not None:
            return self._parked.replay_soon(assigned, key)
        begins = assigned.unpark(key)
        if begins:
            self.submit(assigned)
        return begins is not None

    def _consume(self, assigned: KeyOrderedQueue, serving: Serving) -> Steps:
        # This request is served now. A message that arrives from here on submits another one,
        # and what arrived before is seen by the run: no wake-up is lost.
        assigned.process_queue.end_dispatch()
        return super()._consume(assigned, serving)

    def _ended(self, assigned: KeyOrderedQueue) -> None:
        # What is left may be of parked keys only; their messages must leave the queue, or they
        # would hold its commit.
        if self._parked is not None and assigned.parked_keys():
            self._client.runtime.post(self._parked.move_soon, assigned)

    def _give_back(self, run: core.contract.ConsumeRun, context: Any) -> None:
        # An internal error, or the listeners' loop was closed. The lanes must not wait for this
        # call for ever.
        assigned, claim = run.assigned, run.claim
        if claim is None and context is not None:
            claim = context.claim
        if claim is not None and assigned.has_claim(claim):
            assigned.end_batch(claim, 0, self._clock.now_ms())
            if assigned.release(claim, 0, len(claim.messages)):
                self.submit(assigned)

    def _settle(
        self, run: core.contract.ConsumeRun, context: ConsumeContext, outcome: Outcome
    ) -> Settling:
        assigned, claim, messages = run.assigned, context.claim, context.claim.messages
        step = NextStep.RETRY  # what follows if fewer than all are done
        verdict = self._judge(context, outcome)
        if self._recorder.enabled:
            self._records.ended(context, verdict)
        done = verdict.done
        if done < len(messages):
            step = self._failure_handler.next_step(assigned, context, verdict)
        if step is NextStep.DEAD_LETTER:
            done += yield from self._failure_handler.move_to_dead_letters(
                assigned, claim, messages[done], verdict.error
            )
        self._count_call(run, verdict.done, len(messages) - verdict.done)
        run.take(messages)
        assigned.internal_errors = 0
        if not assigned.end_batch(claim, done, self._clock.now_ms()):
            return True
        # After `end_batch`: it suspends the keys that failed, and a release must come later.
        if done < len(messages):
            self._hold_back(assigned, context, done, step)
        if self._commits_now(done, step):
            yield OnIoThread(self._commit(assigned))
        return True

    def _hold_back(
        self, assigned: KeyOrderedQueue, context: ConsumeContext, done: int, step: NextStep
    ) -> None:
        """Keep the lanes of failed messages closed: for a pause, or until somebody asks.

        The other lanes of the call open at once.
        """
        claim = context.claim
        offset = claim.messages[done].queue_offset
        if step is NextStep.STOP:
            self._failure_handler.stop(assigned, offset)
        elif step is NextStep.PARK and (key := assigned.park(claim, done)) is not None:
            self._statistics.add("parked", queue=assigned.queue)
            shown, topic = key.decode(errors="replace"), self._failure_handler.parking_topic
            # The command, too: whoever reads the log has no consumer object at hand.
            tool = f", or `ordermq parked redrive {topic} {self._group} {shlex.quote(shown)}`,"
            _log.error(
                "%s: key %r parked at offset %d after %d attempts; call unpark(%r)%s to continue "
                "with it",
                assigned.queue,
                shown,
                offset,
                assigned.attempts.get(offset, 0),
                shown,
                tool if topic else "",
                extra=self._fields(assigned.queue, offset=offset),
            )
        elif step is not NextStep.SPLIT:
            # What follows the first unfinished message was not tried, and does not wait for it,
            # unless the listener asked for a pause of the whole call.
            end = done + 1 if context.suspend_ms == -1 else len(claim.messages)
            self._release_later(assigned, context, done, end)
            done = end
        # A parked key stays parked.
        if assigned.release(claim, done, len(claim.messages)):
            self.submit(assigned)

    def _release_later(
        self, assigned: KeyOrderedQueue, context: ConsumeContext, first: int, end: int
    ) -> None:
        """Open the lanes of positions `first` to `end` of a call after their pause."""
        delay_ms = self._failure_handler.delay_ms(assigned, context, first)

        async def release() -> None:
            await self._clock.sleep_ms(delay_ms)
            if assigned.release(context.claim, first, end):
                self.submit(assigned)

        runtime = self._client.runtime
        runtime.post(lambda: runtime.spawn(release(), f"retry a key of {assigned.queue}"))

    async def _call_parked(
        self, assigned: KeyOrderedQueue, claim: BatchClaim, message: MessageView
    ) -> bool:
        """Call the listener for a parked message; on the I/O thread. True if it is done."""
        run = MessageRun([(message.index, 0, 1)])
        context = ConsumeContext(assigned, claim, run, 0)
        record, epoch = self._recorder.record_messages, claim.lease.epoch
        if self._recorder.enabled:
            lane = self._config.max_in_flight_per_queue
            record(EventType.START, assigned.queue, epoch, run, attempt=1, lane=lane)
        begun_ms = self._clock.now_ms()
        outcome = await self._pool.call_alone(self._listener, context)
        verdict = self._judge(context, outcome)
        if verdict.error is not None:
            self._failure_handler.log_parked(assigned, message.queue_offset, verdict.error)
        if self._recorder.enabled:
            detail = verdict.settlement.name
            record(EventType.END, assigned.queue, epoch, run, done=verdict.done, detail=detail)
        spent_ms = self._clock.now_ms() - begun_ms
        self._statistics.consumed(assigned.queue, verdict.done, 1 - verdict.done, 1, spent_ms)
        return verdict.done == 1
