"""The state of a queue through one micro-batch: loaded by the task that gets the queue, and stored.

A worker keeps what it has stored in memory. The next task that gets the queue there reads nothing,
or only what other workers have changed since.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ordermq.errors import ConfigError, OrderingError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import RunningTask
from ordermq.spark.stages.keyed_state import MAX_BYTES, KeyedState
from ordermq.spark.stages.state_store import (
    MAX_CHANGES,
    Kind,
    StateFolder,
    StateVersion,
    StoredState,
    base_versions,
    check_sole_writer,
    encoded,
    outdated,
    stage_name,
)

_log = logging.getLogger("ordermq.spark")


@dataclass(frozen=True, slots=True)
class CachedState:
    """A state as this worker has stored it.

    Args: version: the stored one; n_bytes: the memory of the state.
    """

    state: KeyedState
    version: StateVersion
    last_offset: int
    n_bytes: int


class StateCache:
    """The states that a worker process has stored, as long as they have room.

    Spark reuses a worker for many tasks and never promises it the same queue again. So a state is
    used only if the version that it was stored as is the newest one, or one that it goes on from.
    """

    def __init__(self) -> None:
        # Least recently used first.
        self._entries: OrderedDict[tuple[str, MessageQueue], CachedState] = OrderedDict()
        self.n_bytes = 0
        self.hits = 0
        self.loads = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, path: str, queue: MessageQueue) -> CachedState | None:
        """Take the state of a queue out of the cache, if it is there."""
        found = self._entries.pop((path, queue), None)
        self.n_bytes -= 0 if found is None else found.n_bytes
        return found

    def put(self, path: str, queue: MessageQueue, stored: CachedState) -> None:
        """Keep the state of a queue, which is not in the cache."""
        self._entries[path, queue] = stored
        self.n_bytes += stored.n_bytes

    def make_room(self, max_bytes: int) -> None:
        """Drop the states that were not used for the longest time; they are stored."""
        while self._entries and self.n_bytes > max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.n_bytes -= dropped.n_bytes
            self.evictions += 1


STATES = StateCache()


class QueueState:
    """The state of the queue whose rows a task processes.

    Args:
        schema, initial: of `KeyedState`.
        folder: where it is stored; None in a batch query, which begins without state.
        task, run: the running task, and the name of its run.
        first_offset: of the queue's rows in this task.
        cache: the states that this worker has stored.
    Attributes:
        last_offset: of the rows that have made the state; set it before `store`.
    Raises: StoreError: the stored state is damaged or incomplete. ConfigError: it has another
        schema. OrderingError: it has the rows already.
    """

    def __init__(
        self,
        schema: Any,
        initial: Mapping[str, Any],
        folder: StateFolder | None,
        task: RunningTask,
        run: str,
        queue: MessageQueue,
        first_offset: int,
        cache: StateCache = STATES,
    ) -> None:
        self.queue = queue
        self.last_offset = -1
        self._schema = schema
        self._initial = initial
        self._folder = folder
        self._task = task
        self._run = run
        self._cache = cache
        self._base: list[StateVersion] = []
        if folder is None:
            self.state = KeyedState(schema, initial)
        else:
            self.state = self._loaded(folder)
            self._check_continues(first_offset)

    def _loaded(self, folder: StateFolder) -> KeyedState:
        queue, cache = self.queue, self._cache
        self._base = base_versions(folder.versions(queue), self._batch, self._run, str(queue))
        # Out of the cache until it is stored: a task that fails leaves a state half changed.
        cached = cache.take(folder.path, queue)
        state, left = KeyedState(self._schema, self._initial), self._base
        if (
            cached is not None
            and cached.version in left
            and cached.state.is_like(self._schema, self._initial)
        ):
            state, self.last_offset = cached.state, cached.last_offset
            left = left[left.index(cached.version) + 1 :]
            cache.hits += 1
        cache.loads += bool(left)
        for version in left:
            stored = folder.read(queue, version)
            self._check_schema(stored.states.schema)
            state.load(stored.states)
            self.last_offset = stored.last_offset
        return state

    def _check_schema(self, stored: Any) -> None:
        if stored.equals(self._schema):
            return
        raise ConfigError(
            f"the stored state of {self.queue} has other columns: keep state_schema and key as "
            "they were, or start the query with a new checkpoint. It has "
            f"{_columns(stored)}, the stage {_columns(self._schema)}"
        )

    @property
    def _batch(self) -> int:
        assert self._task.batch_id is not None
        return self._task.batch_id

    def _check_continues(self, first_offset: int) -> None:
        if first_offset > self.last_offset:
            return
        queue = self.queue
        raise OrderingError(
            f"micro-batch {self._batch} begins at offset {first_offset}, but the stored state has "
            f"offset {self.last_offset} already: start with a new checkpoint. The query was given "
            "the offsets of another checkpoint, or the topic was created anew",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=first_offset,
        )

    def check_size(self, max_bytes: int) -> None:
        """Make room for the state, and raise where it has none.

        Raises: ConfigError: the state of this queue alone is larger than the limit.
        """
        used = self.state.n_bytes
        limit = min(max_bytes, MAX_BYTES)
        if used > limit:
            # Rows that newer ones have replaced may be the larger part.
            self.state.compact()
            used = self.state.n_bytes
        if used > limit:
            raise ConfigError(
                f"the state of one queue has {used} bytes, more than max_state_bytes allows, "
                f"{limit}: raise it (up to {MAX_BYTES}), use more queues, or forget keys that are "
                f"done, by a state of missing values. {self.queue} has {len(self.state)} keys"
            )
        self._cache.make_room(max_bytes - used)

    def store(self) -> None:
        """Store the state as this micro-batch's; a batch query stores nothing.

        Raises: StoreError: it cannot be written. ConfigError, OrderingError: see
            `check_sole_writer`.
        """
        folder, queue = self._folder, self.queue
        if folder is None:
            return
        version, content = self._encoded()
        folder.write(queue, version, content)
        versions = folder.versions(queue)
        check_sole_writer(versions, version, queue)
        folder.remove(queue, outdated(versions, self._base, version))
        if version.kind == "snapshot":  # now and then is enough
            folder.remove_drafts(queue, version.batch)
        self.state.forget_changes()
        # Taken out when it was loaded, and a task has a queue once: it is not there now.
        n_bytes = self.state.n_bytes
        stored = CachedState(self.state, version, self.last_offset, n_bytes)
        self._cache.put(folder.path, queue, stored)
        _log.debug(
            "state stored: queue=%s batch=%d keys=%d bytes=%d written=%d",
            queue,
            self._batch,
            len(self.state),
            n_bytes,
            len(content),
        )

    def _encoded(self) -> tuple[StateVersion, bytes]:
        base = self._base
        if base and len(base) <= MAX_CHANGES:
            changes = self._version_of("changes", self.state.changes())
            # Together the changes are never more than the snapshot, so a state is read in twice
            # its size at most, and written in three times what changed.
            if sum(each.size for each in base[1:]) + len(changes[1]) <= base[0].size:
                return changes
        return self._version_of("snapshot", self.state.everything())

    def _version_of(self, kind: Kind, states: Any) -> tuple[StateVersion, bytes]:
        task = self._task
        version = StateVersion(
            batch=self._batch,
            previous=self._base[-1].batch if self._base else None,
            run=self._run,
            stage=stage_name(task.stage),
            partition=task.partition,
            task=task.task_attempt,
            kind=kind,
        )
        used = self.state.n_bytes
        told = {
            "keys": len(self.state),
            "state_bytes": used,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
            "worker_state_bytes": self._cache.n_bytes + used,
            "worker_queues": len(self._cache) + 1,
            "worker_hits": self._cache.hits,
            "worker_loads": self._cache.loads,
            "worker_evictions": self._cache.evictions,
        }
        return version, encoded(self.queue, version, StoredState(states, self.last_offset, told))


def _columns(schema: Any) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in schema)
