"""Where messages come in: they enter their queues' lanes in the order they were handed in."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ordermq.client.session import ClientSession
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.pending_message import Entry
from ordermq.producer.queue_selector import Targets
from ordermq.producer.queue_sender import QueueLane
from ordermq.producer.selectors import ShardingKey


@dataclass(slots=True, eq=False)
class Parcel:
    """Messages for one queue, which lie there back to back.

    Args:
        message: the first of them; its topic is that of all.
        queue: go there, whatever the selector says.
    """

    message: Message
    key: ShardingKey | None
    queue: MessageQueue | None
    entries: Sequence[Entry]

    @property
    def is_free(self) -> bool:
        """Whether any queue of its topic will do."""
        return self.key is None and self.queue is None and len(self.entries) == 1

    def fail(self, error: BaseException) -> None:
        for entry in self.entries:
            entry.finish(None, error)


class Intake:
    """First come, first served: also while the first still waits for its topic's route.

    A message that finds the producer idle is sent by its caller's thread.

    Args:
        lane_of: the lane of a queue.
        under_way: lanes with a request under way.
    """

    def __init__(
        self,
        client: ClientSession,
        targets: Targets,
        lane_of: Callable[[MessageQueue], QueueLane],
        under_way: Collection[QueueLane],
    ) -> None:
        self._client = client
        self._targets = targets
        self._lane_of = lane_of
        self._under_way = under_way
        self._lock = threading.Lock()  # of who lets messages enter; no caller waits for it
        self._handed_in: deque[Parcel] = deque()
        self._entered: dict[QueueLane, None] = {}  # lanes that have not begun with what came
        self._is_woken = False
        self._asking: asyncio.Task[None] | None = None
        self._refusal: BaseException | None = None

    def hand_in(self, parcel: Parcel, *, is_awaited: bool) -> None:
        """Take messages, from any thread; each entry's `on_done` tells what became of it.

        Args:
            is_awaited: the caller waits for these before it hands in more. It may as well send
                them itself, which spares waking the I/O thread, unless that is at it anyway:
                then what gathers leaves in one write, and of one queue in one request. Not so
                a batch: it is a request of its own anyhow.
        """
        if is_awaited and self._is_sent(parcel):
            return
        self._handed_in.append(parcel)
        if self._refusal is not None:  # closed since the caller looked: nobody would come for it
            self._turn_away(self._refusal)
            return
        # The I/O thread is woken once for all that gathers until it looks.
        if not self._is_woken:
            self._is_woken = True
            self._client.runtime.post(self._look)

    def _is_sent(self, parcel: Parcel) -> bool:
        joins_others = self._under_way and len(parcel.entries[0]) == 1
        if joins_others or not self._lock.acquire(blocking=False):
            return False
        try:
            topic = parcel.message.topic
            if self._handed_in or self._refusal or not self._client.routes.is_known(topic):
                return False
            try:
                lane = self._lane_for(parcel)
            except Exception:  # noqa: BLE001 - the I/O thread meets it, too, and tells
                return False
            lane.send(parcel.entries)
            return True
        finally:
            self._lock.release()

    # On the I/O thread.

    @property
    def is_empty(self) -> bool:
        return not self._handed_in

    def close(self, error: BaseException) -> None:
        """Turn away what has not entered its lane."""
        with self._lock:  # what a caller sends itself is in its lane by now, and ends with that
            self._refusal = error
        if self._asking is not None:
            self._asking.cancel()
        self._turn_away(error)

    def _turn_away(self, error: BaseException) -> None:
        with contextlib.suppress(IndexError):  # two threads may be at it
            while True:
                self._handed_in.popleft().fail(error)

    def _look(self) -> None:
        # Cleared before the look: what is handed in meanwhile is seen by it or wakes another.
        self._is_woken = False
        while self._handed_in and self._asking is None:
            parcel = self._handed_in[0]
            if not self._client.routes.is_known(parcel.message.topic):
                name = f"route of {parcel.message.topic}"
                self._asking = self._client.runtime.spawn(self._ask_first(parcel), name)
                self._asking.add_done_callback(self._asked)
                break
            self._enter_first()
        # Not sooner: what came together goes together.
        with self._client.connections.joined():
            while self._entered:
                self._entered.popitem()[0].begin()

    async def _ask_first(self, parcel: Parcel) -> None:
        try:
            await self._targets.learn(self._client.routes, parcel.message.topic)
        except Exception as error:  # noqa: BLE001 - raised where its receipt is read
            self._handed_in.popleft()
            parcel.fail(error)
        else:
            self._enter_first()

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            self._look()

    def _enter_first(self) -> None:
        with self._lock:  # else its caller's next message could overtake it
            parcel = self._handed_in.popleft()
            try:
                lane = self._lane_for(parcel)
            except Exception as error:  # noqa: BLE001 - raised where its receipt is read
                refusal = error
            else:
                lane.put(parcel.entries)
                self._entered[lane] = None
                return
        parcel.fail(refusal)

    def _lane_for(self, parcel: Parcel) -> QueueLane:
        routes = self._client.routes
        target = self._targets.choose(routes, parcel.message, parcel.key, parcel.queue)
        return self._lane_of(target)
