"""LifeWatch: finds a held queue that began another life
(docs/internals/semantics.md#a-topics-second-life)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ordermq.client.connections import is_busy, is_denied
from ordermq.client.session import ClientSession
from ordermq.clock import MINUTE_MS
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.statistics import ConsumerStatistics
from ordermq.errors import BrokerError, OrderMQError, ProtocolError
from ordermq.model.names import TOOLS_GROUP
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.headers import PullReplyHeader
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.client.queue_life import Landmark, NewLife
    from ordermq.model.message import MessageView
    from ordermq.model.subscription import Subscription

_log = logging.getLogger("ordermq.consumer")
# A topic that is deleted, made again and filled beyond our offset leaves a gap in the messages, for
# at least as long as that takes. Longer than the engine's counts wait to be gathered.
QUIET_MS = 2_500
_RENEW_MS = 30_000  # age of a mark; a younger one repeats less where a broker lost messages
# A topic made again with as many messages as were read looks like one to which nothing came.
_IDLE_MS = 120_000
_PAUSE_MS = 5_000  # between two looks: a queue with a message each few seconds needs no more


class PulledMark(Value):
    """A message that was pulled, by which the life of its queue is known without a look.

    No checksum covers what it is made of. So it is another message only if the store time and one
    of the others differ. What takes its place in a log that was cut short may begin at the same
    byte.

    Args:
        offset: of the message in its queue.
        stored_ms: when its broker stored it, since 1970.
        physical_offset: in the broker's log.
        born_ms: when its producer sent it, since 1970.
    """

    offset: int
    stored_ms: int
    physical_offset: int
    born_ms: int

    @property
    def minute(self) -> int:
        return self.stored_ms // MINUTE_MS

    def is_of(self, message: MessageView) -> bool:
        return message.store_timestamp_ms == self.stored_ms or (
            message.physical_offset,
            message.born_timestamp_ms,
        ) == (self.physical_offset, self.born_ms)


class LifeWatch:
    """Looks whether one queue is still the one that was read; on the I/O thread.

    The looks name `TOOLS_GROUP`: a pull of the member's own group would take an admin's reset,
    which brokers tell of once. Where an account may not use it, only a queue that ends before the
    member's offset is known to have begun anew.

    Args:
        mark: of an earlier assignment of the queue to this member.
        on_new_life: called with what a look beside the pulls found.
    Attributes:
        mark: a message of the queue; None before the first one is read.
        doubts: number of times that something may have happened to the queue.
    """

    def __init__(
        self,
        client: ClientSession,
        assigned: AssignedQueue,
        mark: Landmark | None,
        statistics: ConsumerStatistics,
        on_new_life: Callable[[NewLife], None],
    ) -> None:
        self._client = client
        self._assigned = assigned
        self.mark = mark
        self._statistics = statistics
        self._on_new_life = on_new_life
        self._lives = 0  # that began under this watch
        self.doubts = self._settled_doubts = 0
        # What had been read last when a doubt came up: a mark may be older than what a broker lost.
        # Of doubts that no look has settled the first and the last.
        self._trusted: tuple[PulledMark, ...] = ()
        self._lost_read: PulledMark | None = None  # last read, and no more at the broker
        self._wanted: Subscription | None = None  # what its filter passes; None: everything
        # From there to the second one nothing but that filter has passed over messages.
        self._read_from = self._reached = self._generation = -1
        self._looked_at = 0  # the member's offset at the last look
        self._looking_at: list[int] = []  # looks under way, by the member's offset then
        self._returns = 0  # of pull loops, to an offset before that of a look under way
        self._is_denied = False
        self._read_ms = client.clock.now_ms()  # when messages were last known to have come
        self._looked_ms: int | None = None
        self._look_task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look at a queue that was just assigned, beside its first pulls."""
        if self._assigned.next_pull_offset:
            self._look_soon()

    @property
    def is_doubtful(self) -> bool:
        """True: look before the next pull, as something may have happened to the queue."""
        return self.doubts != self._settled_doubts

    def doubt(self) -> None:
        """Have the queue looked at before its next pull; on the I/O thread."""
        self.doubts += 1
        if (last := self._last_read()) is not None and last not in self._trusted:
            self._trusted = (*self._trusted[:1], last)

    def reads_from(self, offset: int, generation: int, wanted: Subscription | None) -> None:
        """Note that a pull loop begins.

        Args: wanted: the messages that are not passed over; None: all.
        """
        if any(offset < at for at in self._looking_at):
            # It compares what was read beyond that offset, as before a lost lease. Its answer would
            # move the queue back once it has read on: looked at anew before the first pull.
            self._returns += 1
            self.doubt()
        # Behind a seek, or by another expression, what lies before was not passed over by this one.
        is_continued = generation == self._generation or self._read_from <= offset <= self._reached
        if not is_continued or wanted != self._wanted or self._read_from < 0:
            self._read_from = offset
        self._generation, self._wanted, self._reached = generation, wanted, offset

    def has_reached(self, offset: int) -> None:
        """Note the offset of the last pull of a loop."""
        self._reached = max(self._reached, offset)

    def note_read(self) -> None:
        """Have a mark from the first messages on; on the I/O thread, once they were buffered.

        A look takes a request, and may still wait to be made. A topic may be deleted, and be made
        again with as many messages, before that is answered.
        """
        if self.mark is None and (read := self._assigned.first_read) is not None:
            self.mark = PulledMark(*read)

    def note_messages(self) -> None:
        """Note that messages have come; any thread, at each answer."""
        now_ms = self._client.clock.now_ms()
        was_quiet = now_ms - self._read_ms >= QUIET_MS
        self._read_ms = now_ms
        if self._look_task is not None or self._is_denied:
            return
        is_old = self._looked_ms is None or now_ms - self._looked_ms >= _RENEW_MS
        if was_quiet or is_old:
            self._client.runtime.post(self._look_soon)

    def note_nothing(self) -> None:
        """Note that a pull found nothing new; on the I/O thread."""
        looked_ms, now_ms = self._looked_ms, self._client.clock.now_ms()
        if self._wanted is not None and self._assigned.next_pull_offset > self._looked_at:
            # A filter passes over what comes: the next look in doubt reads all of that again.
            is_due = looked_ms is None or now_ms - looked_ms >= _RENEW_MS
        else:
            is_due = looked_ms is not None and now_ms - looked_ms >= _IDLE_MS
        if is_due:
            self._look_soon()

    async def look(self) -> NewLife | None:
        """Return the new life that the queue began, if it did; else renew the mark.

        Raises: RemotingError, RouteError: it could not be found out.
        """
        if self._is_denied:
            return None
        read = self._read_marks()
        at = self._assigned.next_pull_offset  # at last: all of those were read before it
        self._looking_at.append(at)
        try:
            return await self._look_before(at, read)
        finally:
            self._looking_at.remove(at)

    async def _look_before(self, at: int, read: Sequence[PulledMark]) -> NewLife | None:
        """Look before a pull at an offset.

        Args: read: messages before that, by which what follows the mark is known.
        """
        from ordermq.client.queue_life import QueueMark  # here and below: long after start

        since, doubts, is_in_doubt = (self._lives, self._returns), self.doubts, self.is_doubtful
        self._looked_ms = self._client.clock.now_ms()
        try:
            # Taken first: if an old one still holds behind it, both are of the same life.
            message = await self._message_before(at)
            fresh = None if message is None else QueueMark.of(message)
            mark = self.mark
            # Only the mark tells. What was read last may be of the new life already: a broker
            # answers a pull that it held for the old one with messages of the new one.
            if mark is None or not _is_marked(message, mark):
                life = await self._new_life(at, mark)
                if life is None and (mark is None or mark.offset + 1 < at):
                    life = await self._life_behind_mark(at, message, read, is_in_doubt)
                    if life is not None and life.end < at:
                        return None  # in doubt: the next pull is told of it, unless it grows
                if since != (self._lives, self._returns):
                    return None  # another look has found it, or looks before the next pull
                if life is not None:
                    return life
            # No checksum covers what a mark is made of.
            if fresh is not None and fresh != self.mark and not await self._has(fresh):
                return None
        except ProtocolError as error:
            # It stays in doubt: the next look asks for the same.
            self._statistics.add("bad_answers")
            _log.info("%s: looked in vain: %s", self._assigned.queue, error)
            return None
        except BrokerError as error:
            if is_busy(error) or error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                raise
            # A look that is refused must not keep the pulls waiting.
            self._settled_doubts = doubts
            if is_denied(error.response_code, str(error)):
                self._is_denied = True
                told = "another life of the topic is found by its end only"
            else:
                told = "looked in vain"  # a broker that fails now may answer the next one
            _log.info("%s: %s: %s", self._assigned.queue, told, error)
            return None
        if since != (self._lives, self._returns):
            return None
        self.mark, self._looked_at = fresh or self.mark, at
        self._settled_doubts = doubts
        if not self.is_doubtful:
            self._trusted = ()
        return None

    async def found_by_broker(self, at: int, reply: PullReplyHeader) -> NewLife | int:
        """Return the new life of a queue, where a broker sends its reader back from `at`; or
        within its present life the offset to continue from.
        """
        from ordermq.client.queue_life import NewLife

        queue, first, end = self._assigned.queue, reply.next_begin_offset, reply.max_offset
        mark = self.mark
        try:
            if mark is not None and await self._has(mark):
                # The queue was cut short, or somebody has sought beyond its end.
                last = await self._last_there(end, self._read_marks())
                return first if last is None else min(last.offset + 1, first)
            if life := await self._new_life(at, mark):
                return life
        except OrderMQError as error:
            self._client.report_failure(queue.broker_name, "look at a queue", error)
        if end < at:
            reason = f"it ends at offset {end}, and was read up to {at}"
            return NewLife(queue, at, reply.min_offset, end, reason)
        return NewLife(queue, at, first, end, f"the broker counts anew from {first} on")

    async def _new_life(self, at: int, mark: Landmark | None) -> NewLife | None:
        """Return the new life since a mark, if it is found twice; None without a mark."""
        from ordermq.client.queue_life import new_life

        found = None
        for _ in range(2 if mark is not None else 0):
            found = await new_life(self._client, TOOLS_GROUP, self._assigned.queue, at, mark)
            if found is None:
                return None
        return found

    async def _life_behind_mark(
        self, at: int, message: MessageView | None, read: Sequence[PulledMark], is_in_doubt: bool
    ) -> NewLife | None:
        """Return the new life that began between the mark and `at`.

        Args: message: before `at`, as it is now.
        """
        gone = [each for each in read if not _is_marked(message, each)]
        life = await self._life_by_last_read(at, gone)
        if life is None and is_in_doubt:
            life = await self._life_by_filter(at, read)
        return life

    async def _life_by_last_read(self, at: int, read: Sequence[PulledMark]) -> NewLife | None:
        """Return the new life that began behind the mark, by messages that were read since."""
        for last in read:
            if self.mark is not None and last.offset <= self.mark.offset:
                continue
            if (life := await self._new_life(at, last)) is not None:
                # Up to that one the queue is as it was read; clocks tell less.
                if (there := await self._last_there(last.offset, read)) is not None:
                    life = life._replace(first=min(there.offset + 1, at))
                return life
        return None

    async def _life_by_filter(self, at: int, read: Sequence[PulledMark]) -> NewLife | None:
        """Return the new life that began in what a filter has passed over since the last mark."""
        from ordermq.client.queue_life import life_by_filter

        # Also what was buffered since the look began, as it has come before the member's offset.
        marks = self._known(*read, *self._read_marks())
        first = max((self._read_from, *(each.offset + 1 for each in marks)))
        if self._wanted is None or first >= at:
            return None
        queue, passed = self._assigned.queue, (first, at)
        look = partial(life_by_filter, self._client, TOOLS_GROUP, queue, passed, self._wanted)
        return await look() and await look()

    async def _last_there(self, end: int, read: Sequence[PulledMark]) -> Landmark | None:
        """Return the last one of the known messages before `end` that the broker still has."""
        for each in sorted(self._known(*read), key=lambda mark: mark.offset, reverse=True):
            if each.offset < end and await self._has(each):
                return each
        return None

    def _known(self, *read: Landmark) -> tuple[Landmark, ...]:
        """Return messages that were read, and the mark."""
        return read if self.mark is None else (self.mark, *read)

    async def _has(self, mark: Landmark) -> bool:
        """Return whether the broker still has a marked message."""
        from ordermq.client.queue_life import is_there

        return await is_there(self._client, TOOLS_GROUP, self._assigned.queue, mark)

    async def _message_before(self, offset: int) -> MessageView | None:
        from ordermq.client.queue_life import message_before

        return await message_before(self._client, TOOLS_GROUP, self._assigned.queue, offset)

    def moved(self) -> None:
        """Note that the queue goes on before the part which its broker has lost.

        What came up meanwhile stays in doubt: what is buffered was waited for.
        """
        last = self._last_read()
        if last is not None and last.offset >= self._assigned.next_pull_offset:
            self._lost_read = last
        self._trusted = ()

    def began(self) -> None:
        """Forget the mark of the life before."""
        self._lives += 1
        self.mark = None
        self._looked_ms = None  # the first messages bring the next look
        self._settled_doubts, self._trusted = self.doubts, ()
        self._read_from, self._looked_at = -1, 0
        # One that waits would keep the first one of the new life from being made at once.
        if self._look_task is not None and self._look_task is not asyncio.current_task():
            self._look_task.cancel()
            self._look_task = None

    def close(self) -> None:
        """Look no more."""
        self._is_denied = True
        if self._look_task is not None:
            self._look_task.cancel()

    def _last_read(self) -> PulledMark | None:
        """Return the last message that was buffered, unless its broker has lost it."""
        read = self._assigned.last_read
        mark = None if read is None else PulledMark(*read)
        return None if mark == self._lost_read else mark

    def _read_marks(self) -> list[PulledMark]:
        """Return what was read last, and before the doubts that no look has settled."""
        last = self._last_read()
        return [*self._trusted, *(() if last is None or last in self._trusted else (last,))]

    def _look_soon(self) -> None:
        if self._look_task is None and not self._is_denied:
            name = f"look at {self._assigned.queue}"
            self._look_task = self._client.runtime.spawn(self._look_after_pause(), name)

    async def _look_after_pause(self) -> None:
        clock = self._client.clock
        try:
            # At once for the first mark of a life: without one a topic that is made again tells
            # nothing.
            if self._looked_ms is not None and self.mark is not None:
                await clock.sleep_ms(max(self._looked_ms + _PAUSE_MS - clock.now_ms(), 0))
            if life := await self.look():
                self._on_new_life(life)
        except OrderMQError as error:
            self.doubt()
            _log.debug("%s: no look now: %s", self._assigned.queue, error)
        finally:
            if self._look_task is asyncio.current_task():
                self._look_task = None


def _is_marked(message: MessageView | None, mark: Landmark) -> bool:
    """Return whether a message is the marked one."""
    return message is not None and mark.offset == message.queue_offset and mark.is_of(message)
