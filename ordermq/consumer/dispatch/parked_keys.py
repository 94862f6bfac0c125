"""ParkedKeys: messages of keys that failed too often, in a topic of their own until `unpark`
(docs/internals/semantics.md#failure-policies).

The parking topic is a log (`parking_log.py`): a key is parked as long as the log holds a message of
it behind its last mark, whoever owns the source queue.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from ordermq.consumer.dispatch.parking_log import (
    ParkedName,
    ParkingLog,
    original,
    records,
    store_mark,
    store_parked,
)
from ordermq.consumer.queue.assigned_queue import BatchClaim
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.errors import OrderMQError, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model.message import MessageView
from ordermq.supervisor import every

_log = logging.getLogger("ordermq.consumer")
_AT_ONCE = 32  # messages moved per claim
_RETRY_MS = 1_000
_WATCH_MS = 2_000  # a tool's request to unpark waits for at most this long


class _Place(NamedTuple):
    """A record of a log: its offset, and the broker's id of it."""

    offset: int
    record_id: str


class ParkedKeys:
    """Moves messages to the parking topic and back; on the I/O thread.

    Args:
        call: calls the listener with a parked message, as it was in its source queue; True if it
            is done.
        submit: submits a queue with pending messages to the dispatcher.
    """

    def __init__(
        self,
        member: MemberContext,
        topic: str,
        call: Callable[[KeyOrderedQueue, BatchClaim, MessageView], Coroutine[Any, Any, bool]],
        submit: Callable[[KeyOrderedQueue], None],
    ) -> None:
        self._client = member.client
        self._group = member.group
        self._fields = member.fields
        self._topic = topic
        self._recorder = member.recorder
        self._statistics = member.statistics
        self._call = call
        self._submit = submit
        self._refusals = member.refusals
        self._busy: set[tuple[KeyOrderedQueue, bytes]] = set()  # keys being moved, either way
        # Requests of tools: the queues that may have some, how far each broker's log was read for
        # them, and what was found.
        self._held: weakref.WeakSet[KeyOrderedQueue] = weakref.WeakSet()
        self._watched: dict[str, _Place] = {}
        self._requests = ParkingLog()
        self._watching: asyncio.Task[None] | None = None

    # To the topic.

    def move_soon(self, assigned: KeyOrderedQueue) -> None:
        """Start to move the pending messages of a queue's parked keys."""
        for key in assigned.parked_keys():
            if (assigned, key) not in self._busy:
                # One task per key at a time, or two would interleave its messages in the log.
                self._busy.add((assigned, key))
                move = partial(self._move, assigned, key)
                self._client.supervisor.start("park", move, str(assigned.queue))

    async def _alone(
        self, assigned: KeyOrderedQueue, key: bytes, work: Coroutine[Any, Any, None]
    ) -> None:
        try:
            await work
        finally:
            self._busy.discard((assigned, key))

    async def _move(self, assigned: KeyOrderedQueue, key: bytes) -> bool:
        """Move some messages of a key; False if none is left, or the queue was lost."""
        claim = assigned.take_parked(key, _AT_ONCE, self._now_ms())
        if claim is None:
            # Here and not when the task ends: what comes in between would find the key busy.
            self._busy.discard((assigned, key))
            return False
        done = 0
        try:
            for message in claim.messages:
                # A record beside the next owner would park what that has done by then.
                if not assigned.holds(claim, self._now_ms()):
                    break
                await self._store(message, key)
                self._refusals.ended(assigned, message.queue_offset)
                self._recorder.record_messages(
                    EventType.DIVERT,
                    assigned.queue,
                    claim.lease.epoch,
                    [message],
                    detail="PARKED",
                )
                done += 1
        except (RemotingError, RouteError) as error:
            offset = claim.messages[done].queue_offset
            action = f"storing in parking topic {self._topic}"
            self._refusals.failed(assigned, action, error, offset)
        finally:
            # What is stored counts as done in the source queue, so its commit continues.
            counts = assigned.end_batch(claim, done, self._now_ms())
            if assigned.release(claim, done, len(claim.messages)):  # a lane behind may run now
                self._submit(assigned)
        self._statistics.add("diverted", done, queue=assigned.queue)
        if not counts:
            self._busy.discard((assigned, key))
            return False
        if done < len(claim.messages):
            offset = claim.messages[done].queue_offset
            pause_ms = self._refusals.pause_ms(assigned, _RETRY_MS, offset)
            await self._client.clock.sleep_ms(pause_ms)
        return True

    async def _store(self, message: MessageView, key: bytes) -> None:
        name = ParkedName(self._group, message.message_queue, key)
        await store_parked(self._client, self._topic, name, message)

    # And back.

    async def restore(self, assigned: KeyOrderedQueue) -> None:
        """Park the keys that the log says are parked; returns once the log was read."""
        while True:
            # Before the read: keys read for an old generation must not be parked in a new one.
            generation = assigned.generation
            try:
                keys = set(await self._read(assigned))
                assigned.restore_parked(generation, keys)
                self._refusals.ended(assigned)
                break
            except OrderMQError as error:
                self._refusals.failed(assigned, f"reading parking topic {self._topic}", error)
                pause_ms = self._refusals.pause_ms(assigned, _RETRY_MS)
                await self._client.clock.sleep_ms(pause_ms)
        self._held.add(assigned)
        # From the start of the log: a request may have come while the queue had no owner.
        self._watched.pop(assigned.queue.broker_name, None)
        if self._watching is None or self._watching.done():
            watch = every(self._client.clock, _WATCH_MS, self._look_for_requests)
            self._watching = self._client.supervisor.start("unpark requests", watch, self._group)

    async def _look_for_requests(self) -> bool:
        """Unpark the keys that tools asked to; False, which ends the loop, without a queue."""
        held = [each for each in self._held if not each.is_revoked()]
        # Without a parked key nothing is asked: most groups have none, most of the time.
        waiting = [each for each in held if each.parked_keys() and not each.is_paused]
        for broker in {each.queue.broker_name for each in waiting}:
            try:
                await self._read_requests(broker)
            except (RemotingError, RouteError) as error:
                # Keys of other brokers are unparked all the same.
                self._client.report_failure(broker, "reading requests to unpark", error)
        for assigned in waiting:
            for key in assigned.parked_keys():
                name = self._name(assigned, key)
                if name in self._requests.asked:
                    # Once: a listener that fails again must not be called every other second.
                    self._requests.asked.discard(name)
                    _log.info("%s: a tool asked to unpark key %r", assigned.queue, key.decode())
                    self.replay_soon(assigned, key)
        return bool(held)

    async def _read_requests(self, broker: str) -> None:
        last = self._watched.get(broker)
        begin, expected = (0, None) if last is None else (last.offset, last)
        log = records(self._client, self._group, self._topic, broker, begin)
        async with aclosing(log) as found:
            async for record in found:
                place = _Place(record.queue_offset, record.offset_message_id)
                if expected is not None:
                    if place != expected:
                        break
                    expected = None
                    continue
                name = self._requests.add(record)
                self._watched[broker] = place
                # Requests only: the messages would be held in memory, all of the log.
                if name is not None:
                    self._requests.forget(name)
        if expected is not None:
            # The topic was made anew, or what was read last has expired.
            del self._watched[broker]
            await self._read_requests(broker)

    def replay_soon(self, assigned: KeyOrderedQueue, key: bytes) -> bool:
        """Start to consume the parked messages of a key; False if it is not parked here."""
        if key not in assigned.parked_keys():
            return False
        name = f"unpark of {assigned.queue}"
        self._client.runtime.spawn(self._replay_in_turn(assigned, key), name)
        return True

    async def _replay_in_turn(self, assigned: KeyOrderedQueue, key: bytes) -> None:
        while (assigned, key) in self._busy:  # its last messages are still being moved
            await self._client.clock.sleep_ms(10)
        self._busy.add((assigned, key))
        try:
            await self._alone(assigned, key, self._replay(assigned, key))
        except Exception as error:  # noqa: BLE001 - logged; newer messages are moved all the same
            self._statistics.add("unpark_errors")
            _log.error(
                "%s: key %r stays parked: %s",
                assigned.queue,
                key.decode(),
                error,
                extra=self._fields(assigned.queue),
            )
        self.move_soon(assigned)  # newer messages of it, if it is still parked

    async def _replay(self, assigned: KeyOrderedQueue, key: bytes) -> None:
        parked = (await self._read(assigned)).get(key, [])
        claim = assigned.begin_replay(self._now_ms())
        if claim is None:
            _log.warning(
                "%s: key %r stays parked: the queue is paused or being revoked; unpark it again",
                assigned.queue, key.decode(),
                extra=self._fields(assigned.queue),
            )  # fmt: skip
            return
        done = 0
        try:
            for message in parked:
                if assigned.is_revoked() or not assigned.holds(claim, self._now_ms()):
                    break
                if not await self._call(assigned, claim, original(message)):
                    break
                done += 1
            # The mark is what unparks: after a crash before it, these messages are redelivered.
            if done:
                end = parked[done - 1].queue_offset + 1
                await store_mark(self._client, self._topic, self._name(assigned, key), end)
        finally:
            assigned.end_alone()
        if done < len(parked):
            _log.error(
                "%s: key %r stays parked: %d of its %d messages were consumed",
                assigned.queue, key.decode(), done, len(parked),
                extra=self._fields(assigned.queue),
            )  # fmt: skip
            return
        _log.info("%s: key %r unparked, %d messages consumed", assigned.queue, key.decode(), done)
        if assigned.unpark(key):
            self._submit(assigned)

    async def _read(self, assigned: KeyOrderedQueue) -> dict[bytes, list[MessageView]]:
        """Return the parked messages of a source queue, by key, in order. O(the log)."""
        log, source = ParkingLog(), assigned.queue
        async for record in records(self._client, self._group, self._topic, source.broker_name):
            name = log.add(record)
            # Those of other groups and queues are not held in memory.
            if name is not None and (name.group, name.source) != (self._group, source):
                log.forget(name)
        return {name.key: messages for name, messages in log.messages.items()}

    def _name(self, assigned: KeyOrderedQueue, key: bytes) -> ParkedName:
        return ParkedName(self._group, assigned.queue, key)

    def _now_ms(self) -> int:
        return self._client.clock.now_ms()
