"""ParkedKeys: messages of keys that failed too often, in a topic of their own until `unpark`
(docs/internals/semantics.md#failure-policies).

The parking topic is a log. A record is either a message of a parked key, unchanged, with the
queue and offset it came from; or a mark: all records of this key before this offset of the log
have been consumed. So a key is parked as long as the log holds a message of it behind its last
mark, whoever owns the source queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ordermq.client.session import ClientSession
from ordermq.consumer.queue.assigned_queue import BatchClaim
from ordermq.consumer.queue.key_ordered_queue import KeyOrderedQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.errors import BrokerError, OrderMQError, RemotingError, RouteError
from ordermq.events import EventType
from ordermq.model import properties as props
from ordermq.model.message import MessageRun, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import EVERYTHING
from ordermq.remoting.codes import PullFlag, ResponseCode
from ordermq.remoting.headers import PullHeader, SendHeader

_log = logging.getLogger("ordermq.consumer")
_GROUP, _SOURCE, _OFFSET, _DONE = "omqGroup", "omqSource", "omqOffset", "omqUnparked"
_AT_ONCE = 32  # messages read, or moved, per claim
_RETRY_MS = 1_000
Log = dict[bytes, list[MessageView]]  # parked messages by key, in order


class ParkedKeys:
    """Moves messages to the parking topic and back; on the I/O thread.

    Args:
        call: calls the listener with a parked message; True if it is done.
        submit: submits a queue with pending messages to the dispatcher.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        topic: str,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
        call: Callable[[KeyOrderedQueue, BatchClaim, MessageView], Coroutine[Any, Any, bool]],
        submit: Callable[[KeyOrderedQueue], None],
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._recorder = recorder
        self._statistics = statistics
        self._call = call
        self._submit = submit
        self._busy: set[tuple[KeyOrderedQueue, bytes]] = set()  # keys being moved, either way

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
                await self._store(message, key)
                self._recorder.record_messages(
                    EventType.DIVERT,
                    assigned.queue,
                    claim.lease.epoch,
                    [message],
                    detail="PARKED",
                )
                done += 1
        except (RemotingError, RouteError) as error:
            _log.warning(
                "%s: storing offset %d in parking topic %s failed, retrying: %s",
                assigned.queue, claim.messages[done].queue_offset, self._topic, error,
            )  # fmt: skip
        finally:
            # What is stored counts as done in the source queue, so its commit continues.
            counts = assigned.end_batch(claim, done, self._now_ms())
            if assigned.release(claim, done):  # a lane behind these may run now
                self._submit(assigned)
        self._statistics.add("diverted", done, queue=assigned.queue)
        if not counts:
            self._busy.discard((assigned, key))
            return False
        if done < len(claim.messages):
            await self._client.clock.sleep_ms(_RETRY_MS)
        return True

    async def _store(self, message: MessageView, key: bytes) -> None:
        properties = dict(message.properties)
        properties[props.RETRY_TOPIC] = message.topic
        properties[_OFFSET] = str(message.queue_offset)
        for name in ("TRAN_MSG", props.DELAY, "MIN_OFFSET", "MAX_OFFSET"):
            properties.pop(name, None)
        body = bytes(message.stored_body)
        await self._send(message.message_queue, key, properties, body, message.sys_flag)

    async def _send(
        self,
        source: MessageQueue,
        key: bytes,
        properties: dict[str, str],
        body: bytes,
        sys_flag: int = 0,
    ) -> None:
        properties |= {
            _GROUP: self._group,
            _SOURCE: _name(source),
            props.SHARDING_KEY: key.decode(),
        }
        header = SendHeader(
            producer_group="CLIENT_INNER_PRODUCER",
            topic=self._topic,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp_ms=self._client.clock.wall_ms(),
            properties=props.encode(properties),
            default_topic_queue_nums=1,
            broker_name=source.broker_name,
        )
        address = self._client.routes.master_of(source.broker_name)
        await self._client.api.send(address, header, body, self._client.config.offset_timeout_ms)

    # And back.

    async def restore(self, assigned: KeyOrderedQueue) -> None:
        """Park the keys that the log says are parked; returns once the log was read."""
        while True:
            # Before the read: keys read for an old generation must not be parked in a new one.
            generation = assigned.generation
            try:
                keys = set(await self._read(assigned.queue))
                assigned.restore_parked(generation, keys)
                return
            except OrderMQError as error:
                _log.warning(
                    "%s: reading the parking topic failed, retrying: %s", assigned.queue, error
                )
                await self._client.clock.sleep_ms(_RETRY_MS)

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
        except OrderMQError as error:
            self._statistics.add("unpark_errors")
            _log.error("%s: key %r stays parked: %s", assigned.queue, key.decode(), error)
        self.move_soon(assigned)  # newer messages of it, if it is still parked

    async def _replay(self, assigned: KeyOrderedQueue, key: bytes) -> None:
        parked = (await self._read(assigned.queue)).get(key, [])
        claim = assigned.begin_replay(self._now_ms())
        if claim is None:
            _log.warning(
                "%s: key %r stays parked: the queue is paused or being revoked; unpark it again",
                assigned.queue, key.decode(),
            )  # fmt: skip
            return
        done = 0
        try:
            for message in parked:
                if assigned.is_revoked() or not await self._call(assigned, claim, message):
                    break
                done += 1
            # The mark is what unparks: after a crash before it, these messages are redelivered.
            if done:
                await self._mark(assigned.queue, key, parked[done - 1].queue_offset + 1)
        finally:
            assigned.end_alone()
        if done < len(parked):
            _log.error(
                "%s: key %r stays parked: %d of its %d messages were consumed",
                assigned.queue, key.decode(), done, len(parked),
            )  # fmt: skip
            return
        _log.info("%s: key %r unparked, %d messages consumed", assigned.queue, key.decode(), done)
        if assigned.unpark(key):
            self._submit(assigned)

    async def _mark(self, source: MessageQueue, key: bytes, end: int) -> None:
        await self._send(source, key, {_DONE: str(end)}, b"unparked")

    async def _read(self, source: MessageQueue) -> Log:
        """Return the parked messages of a source queue, by key, in order. O(the log)."""
        # Queue 0 of the source's own broker: only the owner of the source queue writes about it,
        # so its records are in order without any further lock.
        place = MessageQueue(self._topic, source.broker_name, 0)
        address = self._client.routes.master_of(source.broker_name)
        try:
            offset = max(await self._client.api.min_offset(address, place), 0)  # -1: no queue yet
            end = await self._client.api.max_offset(address, place)
        except BrokerError as error:
            if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        log: Log = {}
        while offset < end:
            header = PullHeader(
                self._group, self._topic, 0, offset, _AT_ONCE, PullFlag.SUBSCRIPTION,
                subscription=EVERYTHING, expression_type="TAG", broker_name=place.broker_name,
            )  # fmt: skip
            timeout_ms = self._client.config.offset_timeout_ms
            code, reply, body = await self._client.api.pull(address, header, timeout_ms)
            if code == ResponseCode.SUCCESS:
                following = reply.next_begin_offset
                for message in self._client.api.batch(place, body, (), offset, following):
                    self._fold(log, source, message)
            if reply.next_begin_offset <= offset:
                break
            offset = reply.next_begin_offset
        return {key: messages for key, messages in log.items() if messages}

    def _fold(self, log: Log, source: MessageQueue, message: MessageView) -> None:
        own = message.properties
        if own.get(_GROUP) != self._group or own.get(_SOURCE) != _name(source):
            return
        messages = log.setdefault(own.get(props.SHARDING_KEY, "").encode(), [])
        if (mark := own.get(_DONE)) is not None:
            messages[:] = [each for each in messages if each.queue_offset >= int(mark)]
        # A message that was stored twice, because the first reply was lost, is read once.
        elif not messages or offset_of(messages[-1]) < offset_of(message):
            messages.append(message)

    def _now_ms(self) -> int:
        return self._client.clock.now_ms()


def offset_of(parked: MessageView) -> int:
    """Return the offset a parked message had in its source queue."""
    return int(parked.properties[_OFFSET])


def run_of(parked: MessageView) -> MessageRun:
    """Return a run of this one message, to call a listener with."""
    batch = parked.index
    row = next(row for row in range(len(batch)) if batch.offset_at(row) == parked.queue_offset)
    return MessageRun([(batch, row, 1)])


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id}"
