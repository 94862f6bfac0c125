"""One request of a queue at a time: what gathers meanwhile goes as one batch.

A key always goes to one queue, so one unacknowledged request a queue is at most one
unacknowledged send a key (docs/internals/semantics.md#ordered-sends), and a batch is stored whole
or not at all. The rule
costs little: under load the batches grow, as commits of a database do.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ordermq.client.session import ClientSession
from ordermq.config import SendConfig
from ordermq.errors import KeyFailed
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.faults import Faults
from ordermq.producer.pending_message import Entry, take_batch
from ordermq.producer.selectors import ShardingKey
from ordermq.producer.send_protocol import Destination
from ordermq.producer.sending import Sending, stopped

_log = logging.getLogger("ordermq.producer")


def _stay(queue: MessageQueue, entry: Entry) -> bool:
    return False


class QueueLane:
    """Sends the messages of one queue in the order they come; on the I/O thread, but for `send`.

    Args:
        detour: hands an entry that failed here to another broker's lane; False if it stays.
        faults: hears how long the broker took, if anybody wants to know.
        under_way: the producer's lanes with a request under way, kept by them.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        queue: MessageQueue,
        config: SendConfig,
        detour: Callable[[MessageQueue, Entry], bool] = _stay,
        faults: Faults | None = None,
        under_way: set[QueueLane] | None = None,
    ) -> None:
        self.queue = queue
        self._client = client
        self._config = config
        self._detour = detour
        self._destination = Destination(client, group, queue, config, faults)
        self._lock = threading.RLock()
        self._waiting: deque[Entry] = deque()
        self._failed: dict[ShardingKey, str] = {}
        self._sending: Sending | None = None
        self._under_way = set() if under_way is None else under_way
        self._is_beginning = False

    @property
    def is_idle(self) -> bool:
        return self._sending is None and not self._waiting

    def put(self, entries: Sequence[Entry]) -> None:
        """Queue messages for sending; `begin` sends them, their `on_done` tells the outcome."""
        with self._lock:
            self._waiting.extend(entries)

    def begin(self) -> None:
        """Send what waits, unless a request is under way: then it is sent after that."""
        with self._lock:
            if self._is_beginning:  # from within the loop below: a request failed at once
                return
            self._is_beginning = True
            try:
                while self._waiting and self._sending is None:
                    batch = take_batch(self._waiting, self._config.max_batch_bytes)
                    if self._failed:
                        batch = self._without_failed(batch)
                    if batch:
                        self._next(batch).start()
            except Exception:  # noqa: BLE001 - a defect: yet nobody may wait for ever
                _log.exception("%s: what waits was given up", self.queue)
                self._turn_away()
            finally:
                self._is_beginning = False

    def send(self, entries: Sequence[Entry]) -> None:
        """`put` and `begin` from another thread, which writes the request itself if it can."""
        with self._lock:
            self._waiting.extend(entries)
            if self._sending is not None:
                return  # sent after that
            if self._failed:
                self._client.runtime.post(self.begin)
            else:
                batch = take_batch(self._waiting, self._config.max_batch_bytes)
                self._next(batch).start_from_caller()

    def _next(self, batch: Sequence[Entry]) -> Sending:
        self._sending = sending = Sending(
            self._client,
            self._destination,
            self._config,
            batch,
            self._detour,
            self.fail,
            self._ended,
        )
        self._under_way.add(self)
        return sending

    async def stop(self) -> None:
        """End what is under way; those who wait for it are told."""
        if self._sending is not None:
            await self._sending.stop()
        self._turn_away()

    def fail(self, key: ShardingKey, reason: str) -> None:
        """Let no later message of a key pass, until it is resolved."""
        self._failed.setdefault(key, reason)

    def resolve(self, key: ShardingKey) -> bool:
        """Let a failed key go on; False if it had not failed."""
        return self._failed.pop(key, None) is not None

    def _ended(self, is_sound: bool) -> None:
        with self._lock:
            self._sending = None
            self._under_way.discard(self)
            if not self._waiting:
                return
            if is_sound:
                self.begin()
            else:
                self._turn_away()

    def _turn_away(self) -> None:
        with self._lock:
            while self._waiting:
                self._waiting.popleft().finish(None, stopped(self.queue, "it was not sent"))

    def _without_failed(self, batch: list[Entry]) -> list[Entry]:
        passed = []
        for entry in batch:
            reason = self._failed.get(entry.key) if entry.key is not None else None
            if reason is None:
                passed.append(entry)
            else:
                entry.finish(None, self._key_failed(entry.key, reason))
        return passed

    def _key_failed(self, key: ShardingKey | None, reason: str) -> KeyFailed:
        return KeyFailed(
            f"sharding key {key!r}: an earlier send has an unknown outcome ({reason}); look "
            "whether it arrived, then call producer.resolve(topic, key)",
            topic=self.queue.topic,
            broker=self.queue.broker_name,
            queue_id=self.queue.queue_id,
        )
