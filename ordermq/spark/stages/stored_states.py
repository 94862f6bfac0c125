"""The stored states of a stage, for a look from outside: all of them, and figures by queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.stages.keyed_state import KeyedState
from ordermq.spark.stages.state_store import (
    StateFolder,
    StateVersion,
    base_versions,
    queries_in,
)

_PLACE = pa.schema([("topic", pa.string()), ("broker", pa.string()), ("queue_id", pa.int32())])


def stored_states(directory: str, *, name: str = "state", query_id: str | None = None) -> Any:
    """Return the states that `apply_with_keyed_state` has stored, as a pyarrow Table.

    Its columns are topic, broker, queue_id, the key and the columns of a state. Of each queue it
    shows the newest version; while the query runs, this may be one of the running micro-batch.

    Args:
        directory, name: those of the stage.
        query_id: of the query; needed only if the directory has states of several.
    Raises: ConfigError: there are no states, or of several queries. StoreError: one is damaged.
    """
    tables = []
    for folder, queue, base in _newest(directory, name, query_id):
        state: KeyedState | None = None
        for version in base:
            changes = folder.read(queue, version).states
            state = state or KeyedState(changes.schema)
            state.load(changes)
        assert state is not None  # a queue has a folder since its first version
        rows = state.everything()
        place = (queue.topic, queue.broker_name, queue.queue_id)
        columns = [
            pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            for value, field in zip(place, _PLACE, strict=True)
        ]
        schema = pa.schema([*_PLACE, *rows.schema])
        tables.append(pa.Table.from_arrays([*columns, *rows.columns], schema=schema))
    return pa.concat_tables(tables)


def state_statistics(
    directory: str, *, name: str = "state", query_id: str | None = None
) -> list[dict[str, Any]]:
    """Return figures about the stored states, one dict per queue.

    | figure | meaning |
    |---|---|
    | topic, broker, queue_id | the queue |
    | batch, last_offset | the newest version's micro-batch, and the last row in it |
    | keys, state_bytes | keys with a state, and the memory they take in a worker |
    | stored_bytes, versions | the files that make the newest version |
    | worker | the process that wrote it, as host:pid |
    | worker_state_bytes, worker_queues | the memory of all states in that process, and of how \
many queues |
    | worker_hits, worker_loads, worker_evictions | how often it had a state in memory, read \
files, and dropped a state to make room |

    Others as in `stored_states`.
    """
    found = []
    for folder, queue, base in _newest(directory, name, query_id):
        newest = folder.read(queue, base[-1])
        found.append({
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "batch": base[-1].batch,
            "last_offset": newest.last_offset,
            "stored_bytes": sum(version.size for version in base),
            "versions": len(base),
            **newest.told,
        })  # fmt: skip
    return found


def _newest(
    directory: str, name: str, query_id: str | None
) -> Iterator[tuple[StateFolder, MessageQueue, list[StateVersion]]]:
    queries = queries_in(directory) if query_id is None else [query_id]
    if len(queries) != 1:
        there = f"states of {len(queries)} queries, {', '.join(queries)}" if queries else "no state"
        raise ConfigError(
            f"directory {directory!r} has {there}: give the directory of the stage, and query_id "
            "where several queries use it"
        )
    folder = StateFolder(directory, name, queries[0])
    queues = folder.queues()
    if not queues:
        raise ConfigError(
            f"no states in {folder.path}: give the directory and the name of the stage"
        )
    for queue in queues:
        versions = folder.versions(queue)
        last = max(version.batch for version in versions)
        yield folder, queue, base_versions(versions, last + 1, "", str(queue))
