"""The orderly consume service by key: keys of one queue beside each other
(docs/internals/semantics.md#key-lanes).

A worker that serves a queue claims the messages of one listener call, asks the pool for
another worker if more may run, and only then calls the listener: so as many calls of a queue
run as it has keys with messages, up to `max_in_flight_per_queue`. Of one key one message runs
at a time, in order. What is done is committed up to the oldest message that is not.
"""

from __future__ import annotations

import logging
from typing import Any

from ordermq.consumer.dispatch.consume_loop import OnIoThread, Outcome, Turn
from ordermq.consumer.dispatch.failure_policy import GiveUp, ParkKey, resume_delay_ms
from ordermq.consumer.dispatch.orderly import OrderlyDispatcher
from ordermq.consumer.dispatch.parked_keys import ParkedKeys, offset_of, run_of
from ordermq.consumer.dispatch.worker_pool import call_alone
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.queue.assigned_queue import (
    AssignedQueue,
    BatchClaim,
    Lease,
    NotClaimed,
    QueueCallbacks,
)
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.errors import RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.status import ConsumeResult

_log = logging.getLogger("ordermq.consumer")


class KeyOrderedDispatcher(OrderlyDispatcher):
    """Consumes queues made by `KeyOrderedQueue`; `submit` comes from any thread."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.parking: ParkedKeys | None = None
        if isinstance(self._on_failure, ParkKey) and self._on_failure.topic:
            self.parking = ParkedKeys(
                self._client,
                self._group,
                self._on_failure.topic,
                self._history,
                self._statistics,
                self._call_parked,
                self.submit,
            )

    def make_queue(
        self, queue: MessageQueue, lease: Lease, offset: int, callbacks: QueueCallbacks
    ) -> KeyOrderedQueue:
        return KeyOrderedQueue(queue, self._group, lease, offset, self._config, callbacks)

    async def prepare(self, assigned: KeyOrderedQueue) -> None:  # type: ignore[override]
        """Know the parked keys before anything newer of them is pulled."""
        if self.parking is not None:
            await self.parking.restore(assigned)

    def unpark(self, assigned: KeyOrderedQueue, key: bytes) -> bool:  # type: ignore[override]
        """Go on with a parked key; False if it is not parked here. On the I/O thread."""
        if self.parking is not None:
            return self.parking.replay_soon(assigned, key)
        begins = assigned.unpark(key)
        if begins:
            self.submit(assigned)
        return begins is not None

    def _turn(self, assigned: AssignedQueue) -> Turn:
        assert isinstance(assigned, KeyOrderedQueue)
        size = self._config.consume_message_batch_max_size
        most_ms = self._config.max_time_consume_continuously_ms
        # Our request is answered. A message that comes from here on submits another one, and
        # what came before is seen below: no wake-up is lost.
        assigned.process_queue.end_dispatch()
        started_ms = now_ms = self._clock.now_ms()
        while now_ms - started_ms <= most_ms:
            claim = assigned.take_off(size, now_ms)
            if isinstance(claim, NotClaimed):
                if self.parking is not None and assigned.parked_keys():
                    self._client.runtime.post(self.parking.divert_soon, assigned)
                return
            if assigned.hands_on():
                self.submit(assigned)
            yield from self._call(assigned, claim)
            now_ms = self._clock.now_ms()
            if not self._pool.goes_on(1):
                break
        if assigned.wakes():
            self.submit(assigned)  # other queues wait for this thread

    def _call(self, assigned: KeyOrderedQueue, claim: BatchClaim) -> Turn:
        """One listener call and what follows from it."""
        run = claim.messages
        attempt = assigned.attempts.get(run.first_offset, 0) if assigned.attempts else 0
        context = ConsumeContext(assigned, claim, run, attempt)
        begun_ms = self._clock.now_ms()
        try:
            if self._history.enabled:
                self._record_start(assigned, claim, context)
            outcome = yield context
            spent_ms = self._clock.now_ms() - begun_ms
            done = succeeded = self._done(assigned, claim, outcome)
            give_up = GiveUp.TRY_AGAIN
            if done < len(run):
                give_up = self._count_failures(assigned, run, done)
            if give_up is GiveUp.DIVERT and (yield from self._diverted(assigned, claim, done)):
                done += 1
        except BaseException:
            # A defect of ours, or the end of the listeners' loop: the lanes must not wait.
            assigned.land(claim, 0, self._clock.now_ms())
            if assigned.go_on(claim, 0):
                self.submit(assigned)
            raise
        failed = len(run) - succeeded
        self._statistics.consumed(assigned.queue.topic, succeeded, failed, 1, spent_ms)
        if failed:
            self._statistics.add("batches_failed")
        assigned.defects = 0
        if not assigned.land(claim, done, self._clock.now_ms()):
            return
        if done < len(run):
            self._retry_lanes(assigned, context, done, give_up)
        if done and self._config.commit_interval_ms == 0:
            yield OnIoThread(self._offsets.commit(assigned))

    def _done(self, assigned: KeyOrderedQueue, claim: BatchClaim, outcome: Outcome) -> int:
        value, raised = outcome
        run = claim.messages
        is_success = raised is None and (value is None or value is ConsumeResult.SUCCESS)
        if is_success and not self._history.enabled:
            return len(run)
        verdict = self._judge(assigned, run, outcome)
        if self._history.enabled:
            self._record_end(assigned, claim, run, verdict)
        return verdict.done

    def _diverted(self, assigned: KeyOrderedQueue, claim: BatchClaim, place: int) -> Any:
        """Whether a message is now in the dead-letter topic; a step of a turn."""
        message = claim.messages[place]
        _, error = yield OnIoThread(self._divert(assigned, claim, message))
        if error is None:
            return True
        if not isinstance(error, RemotingError | RouteError):
            raise error
        _log.warning(
            "%s: dead letter of offset %d not stored, tried again later: %s",
            assigned.queue,
            message.queue_offset,
            error,
        )
        return False

    def _retry_lanes(
        self, assigned: KeyOrderedQueue, context: ConsumeContext, done: int, give_up: GiveUp
    ) -> None:
        """Bring what failed back after a pause of its lanes, or not before somebody asks."""
        claim = context.claim
        offset = claim.messages[done].queue_offset
        attempts = assigned.attempts.get(offset, 0)
        if give_up is GiveUp.STOP:
            assigned.stop()
            _log.error(
                "%s: stopped at offset %d after %d attempts; its lock is kept, resume() goes on",
                assigned.queue,
                offset,
                attempts,
            )
        elif give_up is GiveUp.PARK and (key := assigned.park(claim, done)) is not None:
            self._statistics.add("parked")
            _log.error(
                "%s: key %r parked at offset %d after %d attempts; unpark() goes on with it",
                assigned.queue,
                key.decode(errors="replace"),
                offset,
                attempts,
            )
        else:
            self._go_on_later(assigned, context, done)
            return
        if assigned.go_on(claim, done):
            self.submit(assigned)

    async def _call_parked(
        self, assigned: KeyOrderedQueue, claim: BatchClaim, message: MessageView
    ) -> bool:
        """Give a parked message to the listener; on the I/O thread."""
        run = run_of(message)
        context = ConsumeContext(assigned, claim, run, 0)
        place = {"offs": [offset_of(message)], "keys": [message.sharding_key]}
        if self._history.enabled:
            self._record(EventType.START, assigned, claim, attempt=1, **place)
        begun_ms = self._clock.now_ms()
        outcome = await call_alone(self._pool, self._listener, context)
        verdict = self._judge(assigned, run, outcome)
        if self._history.enabled:
            detail = verdict.settlement.name
            self._record(EventType.END, assigned, claim, done=verdict.done, detail=detail, **place)
        spent_ms = self._clock.now_ms() - begun_ms
        topic, failed = assigned.queue.topic, 1 - verdict.done
        self._statistics.consumed(topic, verdict.done, failed, 1, spent_ms)
        return verdict.done == 1

    def _go_on_later(self, assigned: KeyOrderedQueue, context: ConsumeContext, done: int) -> None:
        delay_ms = resume_delay_ms(context.suspend_ms, self._config.suspend_current_queue_time_ms)

        async def go_on() -> None:
            await self._clock.sleep_ms(delay_ms)
            if assigned.go_on(context.claim, done):
                self.submit(assigned)

        runtime = self._client.runtime
        runtime.post(lambda: runtime.spawn(go_on(), f"resume a lane of {assigned.queue}"))

    def _record(
        self, event: EventType, assigned: AssignedQueue, claim: BatchClaim, **members: Any
    ) -> None:
        if event is EventType.START:
            members["lane"] = self._config.max_in_flight_per_queue
        super()._record(event, assigned, claim, **members)
