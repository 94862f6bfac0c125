"""Queue locks: the core's lock table, made durable, and the clients waiting for a queue
(docs/internals/semantics.md#broker-lock-table).

The table decides on grants at once, on the loop thread. A release, and a reply or history event
that must survive a restart, waits for the store. History events are recorded in the order of the
store's commits, which is the order in which clients can learn of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ordermq.broker.connection import BrokerConnection
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Done, Statement, Store, Write
from ordermq.clock import Clock
from ordermq.config import BrokerConfig
from ordermq.core import LockTable, contract
from ordermq.errors import StoreError
from ordermq.events import EventType, Recorder
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.admin_bodies import HeldLock

log = logging.getLogger("ordermq.broker")

Granted = Callable[[Sequence[int], StoreError | None], None]
_GRANT = "INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?)"
# Conditional, because a later grant may already be in the same group commit.
_RELEASE = "DELETE FROM locks WHERE grp = ? AND queue = ? AND owner = ? AND epoch = ?"
# max(): a restart must never assign an epoch again, in whatever order writes are submitted.
_EPOCH = "UPDATE meta SET value = max(value, ?) WHERE name = 'next_epoch'"


class QueueLocks:
    """Holder and epoch of each locked queue, and the clients that were refused it.

    Args:
        notify: asks the client of a connection to rebalance a group now.
    """

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        history: Recorder,
        statistics: BrokerStatistics,
        notify: Callable[[BrokerConnection, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._history = history
        self._statistics = statistics
        self._notify = notify
        self.lease_ms = config.lock_max_live_ms
        self._table: contract.LockTable[MessageQueue] = LockTable(self.lease_ms)
        # A dict as an ordered set: clients are notified in the order in which they were refused.
        self._refused: dict[tuple[str, MessageQueue], dict[BrokerConnection, None]] = {}
        self._twins: set[BrokerConnection] = set()  # logged ones
        self._undecided = 0  # lock and unlock requests whose write is not durable yet
        # A restart gives each holder a full lease: it may be alive and have renewed just before.
        now_ms = clock.now_ms()
        self._table.restore(
            [
                (str(group), _queue_of(str(text)), str(owner), int(str(epoch)), now_ms)
                for group, text, owner, epoch in store.rows("SELECT * FROM locks")
            ],
            int(str(store.meta("next_epoch"))),
        )
        # After a back-up was restored: members may still hold locks that it does not know.
        self._first_grant_ms = now_ms + store.quiet_ms(clock.wall_ms(), self.lease_ms)

    def lock(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        owner: str,
        connection: BrokerConnection,
        granted: Granted,
    ) -> None:
        """Try to lock each queue; `granted` gets an epoch or 0 for each, once they are durable."""
        decided_ms = self._clock.now_ms()
        if decided_ms < self._first_grant_ms:
            self._statistics.locks_refused += len(queues)
            granted([0] * len(queues), None)
            return
        before = [self._table.holder(group, queue) for queue in queues]
        epochs = self._table.try_lock_batch(group, queues, owner, decided_ms)
        fresh: list[tuple[MessageQueue, int]] = []
        taken_over: list[tuple[MessageQueue, str, int]] = []
        for queue, epoch, holder in zip(queues, epochs, before, strict=True):
            self._note_waiting(group, queue, connection, is_refused=not epoch)
            # The same epoch as before is a renewal: nothing new has to become durable.
            if epoch and (holder is None or holder[1] != epoch):
                fresh.append((queue, epoch))
                if holder is not None:
                    taken_over.append((queue, holder[0], holder[1]))
        statements = [
            Statement(_GRANT, (group, _stored(queue), owner, epoch)) for queue, epoch in fresh
        ]
        if statements:
            statements.append(Statement(_EPOCH, (self._table.next_epoch,)))
        self._statistics.locks_refused += epochs.count(0)

        def finish(error: StoreError | None) -> None:
            self._undecided -= 1
            if error is not None:
                # No client may hold an epoch that a restart would assign again.
                for queue, epoch in fresh:
                    self._table.unlock(group, queue, owner, epoch)
                granted([0] * len(epochs), error)
                return
            for queue, old_owner, old_epoch in taken_over:
                self._record_end(EventType.LOCK_LOST, group, queue, old_owner, old_epoch)
            # The grant that this request renewed may have failed to become durable meanwhile.
            held = [
                epoch if epoch and self._holds(group, queue, owner, epoch) else 0
                for queue, epoch in zip(queues, epochs, strict=True)
            ]
            self._record_grants(group, queues, owner, held, decided_ms)
            granted(held, None)

        self._undecided += 1
        # A renewal needs no write; it waits for one only behind grants and releases that are not
        # durable yet, so that replies and history events keep the order of the requests.
        if statements or self._undecided > 1:
            self._store.submit(Write(finish, statements=statements))
        else:
            finish(None)

    def refuse_twin(
        self,
        group: str,
        count: int,
        client_id: str,
        connection: BrokerConnection,
        earlier: BrokerConnection,
    ) -> None:
        """Count the refused locks of a client that has the id of another live one."""
        self._statistics.locks_refused += count
        if connection not in self._twins:
            self._twins.add(connection)
            log.warning(
                "refusing locks, two live clients have one id: group=%s client_id=%s first=%s "
                "second=%s", group, client_id, earlier.peer, connection.peer,
            )  # fmt: skip

    def unlock(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        owner: str,
        epochs: Sequence[int],
        done: Done,
    ) -> None:
        """Release the queues this owner holds, and notify the clients waiting for them.

        Args:
            epochs: release a queue only if it is held in this epoch; empty: in any.
            done: called once the releases are durable.
        """
        # A queue the owner does not hold is skipped: an unlock may arrive after its lock expired.
        held: list[tuple[MessageQueue, int]] = []
        for place, queue in enumerate(queues):
            holder = self._table.holder(group, queue)
            wanted = epochs[place] if place < len(epochs) else 0
            if holder is not None and holder[0] == owner and wanted in (0, holder[1]):
                held.append((queue, holder[1]))

        def finish(error: StoreError | None) -> None:
            self._undecided -= 1
            for queue, epoch in held if error is None else ():
                # It may have expired meanwhile, and be another's.
                if self._table.unlock(group, queue, owner, epoch):
                    self._record_end(EventType.UNLOCK, group, queue, owner, epoch)
                    self._wake(group, queue)
            done(error)

        statements = [
            Statement(_RELEASE, (group, _stored(queue), owner, epoch)) for queue, epoch in held
        ]
        self._undecided += 1
        if statements or self._undecided > 1:
            self._store.submit(Write(finish, statements=statements))
        else:
            finish(None)

    def sweep(self) -> None:
        """Delete expired locks and notify the clients waiting for them."""
        for group, queue, owner, epoch in self._table.sweep(self._clock.now_ms()):
            self._statistics.locks_expired += 1
            self._expired(group, queue, owner, epoch)
            self._wake(group, queue)

    def is_current(self, group: str, queue: MessageQueue, owner: str, epoch: int) -> bool:
        """Return True if this owner holds the queue, not expired, in exactly this epoch."""
        return self._table.is_current(group, queue, owner, epoch, self._clock.now_ms())

    def held(self, group: str, queue: MessageQueue) -> HeldLock | None:
        """Return the queue's holder, epoch and remaining lease; None if nobody holds it."""
        holder = self._table.holder(group, queue)
        if holder is None:
            return None
        owner, epoch, granted_ms = holder
        left_ms = self.lease_ms - (self._clock.now_ms() - granted_ms)
        return HeldLock(queue, owner, epoch, left_ms) if left_ms >= 0 else None

    def describe(self, group: str, queue: MessageQueue) -> str:
        """Return a sentence about the queue's holder, for errors."""
        holder = self._table.holder(group, queue)
        if holder is None:
            return "nobody holds the queue"
        owner, epoch, granted_ms = holder
        if self._clock.now_ms() - granted_ms > self.lease_ms:
            return f"{owner} held the queue in epoch {epoch} until its lease expired"
        return f"{owner} holds the queue in epoch {epoch}"

    def is_ordered(self, group: str) -> bool:
        """Return True if the group holds any lock; only groups that consume in order do."""
        return not self._table.is_all_expired(group, self._clock.now_ms())

    def disconnect(self, connection: BrokerConnection) -> None:
        """Forget a closed connection as a waiting one.

        Its locks stay until they expire: the client may reconnect and still work on the queues
        (docs/internals/protocol.md#queue-lock-requests).
        """
        self._twins.discard(connection)
        for key in [key for key, waiting in self._refused.items() if connection in waiting]:
            del self._refused[key][connection]
            if not self._refused[key]:
                del self._refused[key]

    def _note_waiting(
        self, group: str, queue: MessageQueue, connection: BrokerConnection, *, is_refused: bool
    ) -> None:
        if is_refused:
            self._refused.setdefault((group, queue), {})[connection] = None
        elif (waiting := self._refused.get((group, queue))) is not None:
            waiting.pop(connection, None)

    def _holds(self, group: str, queue: MessageQueue, owner: str, epoch: int) -> bool:
        holder = self._table.holder(group, queue)
        return holder is not None and holder[:2] == (owner, epoch)

    def _wake(self, group: str, queue: MessageQueue) -> None:
        # All of them: the first that asks gets the queue, and any of them may be gone.
        for connection in self._refused.pop((group, queue), ()):
            self._notify(connection, group)

    def _expired(self, group: str, queue: MessageQueue, owner: str, epoch: int) -> None:
        def finish(error: StoreError | None) -> None:
            # If the delete failed, a restart gives the old holder one more lease: the queue is
            # free later, but never held twice.
            self._record_end(EventType.LOCK_LOST, group, queue, owner, epoch)

        row = (group, _stored(queue), owner, epoch)
        self._store.submit(Write(finish, statements=[Statement(_RELEASE, row)]))

    def _record_end(
        self, event: EventType, group: str, queue: MessageQueue, owner: str, epoch: int
    ) -> None:
        if self._history.enabled:
            self._history.record(
                event, group=group, topic=queue.topic, broker=queue.broker_name,
                queue=queue.queue_id, epoch=epoch, client=owner,
            )  # fmt: skip

    def _record_grants(
        self,
        group: str,
        queues: Sequence[MessageQueue],
        owner: str,
        epochs: Sequence[int],
        decided_ms: int,
    ) -> None:
        for queue, epoch in zip(queues, epochs, strict=True):
            if not epoch:
                continue
            self._statistics.locks_granted += 1
            if self._history.enabled:
                self._history.record(
                    EventType.LOCK_OK, group=group, topic=queue.topic, broker=queue.broker_name,
                    queue=queue.queue_id, epoch=epoch, client=owner, lease_ms=self.lease_ms,
                    decided=decided_ms * 1_000_000,
                )  # fmt: skip


def _stored(queue: MessageQueue) -> str:
    # The key of a row in the table `locks`. An `@` inside a name is escaped: a key that is read
    # back as another queue would let a second owner in after a restart. Names without one, all
    # that our clients and BrokerConfig accept, are stored as they always were.
    return f"{_escaped(queue.topic)}@{_escaped(queue.broker_name)}@{queue.queue_id}"


def _escaped(name: str) -> str:
    return name.replace("\\", "\\b").replace("@", "\\a")


def _unescaped(text: str) -> str:
    return text.replace("\\a", "@").replace("\\b", "\\")


def _queue_of(text: str) -> MessageQueue:
    # Rows of an earlier version may hold a broker's name with a bare `@`; topics have none.
    topic, *broker, queue_id = text.split("@")
    return MessageQueue(_unescaped(topic), _unescaped("@".join(broker)), int(queue_id))
