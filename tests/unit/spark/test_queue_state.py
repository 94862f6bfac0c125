"""The stored state of a queue: batches that run again, other workers, damage, wrong set-ups."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.errors import ConfigError, OrderingError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import RunningTask
from ordermq.spark.stages import queue_state, state_store
from ordermq.spark.stages.queue_state import QueueState, StateCache
from ordermq.spark.stages.state_store import (
    StateFolder,
    StateVersion,
    prepare_directory,
    run_name,
)
from ordermq.spark.stages.stored_states import state_statistics, stored_states

SCHEMA = pa.schema([("key", pa.string()), ("sum", pa.int64())])
QUEUE = MessageQueue("orders", "b%1", 3)
TASK = RunningTask("stage", "query", 0, 0, 0, 0, "run")


def folder_in(path: Path) -> StateFolder:
    return StateFolder(str(path), "a stage/1", "query")


def begun(
    folder: StateFolder, task: RunningTask, first_offset: int, cache: StateCache | None = None
) -> QueueState:
    run = run_name(task, "driver")
    cache = StateCache() if cache is None else cache
    return QueueState(SCHEMA, {"sum": 0}, folder, task, run, QUEUE, first_offset, cache)


def added(state: QueueState, first_offset: int, keys: str) -> None:
    """Add 1 to the sum of each key; a key whose sum is 3 is forgotten."""
    asked = pa.array(sorted(set(keys)))
    sums = state.state.get(asked).column("sum").to_pylist()
    new = [number + keys.count(key) for key, number in zip(asked.to_pylist(), sums, strict=True)]
    values = pa.array([None if number == 3 else number for number in new], pa.int64())
    state.state.put(pa.RecordBatch.from_arrays([asked, values], schema=SCHEMA))
    state.last_offset = first_offset + len(keys) - 1


def sums(state: QueueState) -> dict[str, int]:
    return {row["key"]: row["sum"] for row in state.state.everything().to_pylist()}


def run(folder: StateFolder, task: RunningTask, first: int, keys: str, cache: Any = None) -> None:
    state = begun(folder, task, first, cache)
    added(state, first, keys)
    state.store()


@dataclass
class Reference:
    """The same by a dict, batch by batch."""

    sums: dict[str, int] = field(default_factory=dict)

    def add(self, keys: str) -> None:
        for key in set(keys):
            number = self.sums.pop(key, 0) + keys.count(key)
            if number != 3:
                self.sums[key] = number


class Killed(Exception):
    pass


# Where an attempt ends: before it stores, in the middle of it, after it; or batches later.
ENDS = ("before", "draft", "moved", "stored", "late")
ATTEMPT = st.tuples(st.sampled_from(ENDS), st.integers(0, 2), st.booleans())
BATCH = st.tuples(st.text("abcdefgh", max_size=9), st.lists(ATTEMPT, max_size=3), st.integers(0, 2))


@settings(max_examples=40)  # each writes some fifty files to the disk
@given(st.lists(BATCH, max_size=14), st.sampled_from([1, 3, 32]))
def test_the_state_is_that_of_the_finished_batches_wherever_attempts_end(
    batches: list[Any], most_changes: int
) -> None:
    """Three workers; attempts that are killed, some of them with the whole query, and attempts
    that Spark has given up, which store their version in later batches.
    """
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_state, "MAX_CHANGES", most_changes)
        folder, workers = folder_in(Path(name)), [StateCache() for _ in range(3)]
        offset, runs, tasks = begin_with_many_keys(folder), 0, 0
        wanted = Reference(dict.fromkeys(MANY_KEYS, 1))
        given_up: list[tuple[int, QueueState]] = []
        for number, (keys, killed, worker) in enumerate(batches, start=1):
            if not keys:
                continue  # the queue has no rows in this batch
            for end, other, with_query in killed:
                tasks += 1
                task = replace(TASK, batch_id=number, task_attempt=tasks, run_id=f"run{runs}")
                if end == "late":
                    late = begun(folder, task, offset)
                    added(late, offset, keys)
                    given_up.append((number + other, late))
                else:
                    with pytest.raises(Killed):
                        run_and_die(folder, task, offset, keys, workers[other], end)
                if with_query:
                    runs, tasks, workers = runs + 1, 0, [StateCache() for _ in range(3)]
            tasks += 1
            task = replace(TASK, batch_id=number, task_attempt=tasks, run_id=f"run{runs}")
            run(folder, task, offset, keys, workers[worker])
            wanted.add(keys)
            offset += len(keys)
            for _, late in [each for each in given_up if each[0] <= number]:
                late.store()
            given_up = [each for each in given_up if each[0] > number]
            assert sums(begun(folder, replace(task, batch_id=number + 1), offset)) == wanted.sums


# A snapshot of a few keys is no larger than one change, and would be written instead of it.
MANY_KEYS = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(200)]


def begin_with_many_keys(folder: StateFolder, cache: StateCache | None = None) -> int:
    """Make a first batch with a row of each of many keys; the offset behind it."""
    state = begun(folder, TASK, 0, cache)
    ones = pa.array([1] * len(MANY_KEYS), pa.int64())
    state.state.put(pa.RecordBatch.from_arrays([pa.array(MANY_KEYS), ones], schema=SCHEMA))
    state.last_offset = len(MANY_KEYS) - 1
    state.store()
    return len(MANY_KEYS)


def run_and_die(
    folder: StateFolder, task: RunningTask, first: int, keys: str, cache: StateCache, end: str
) -> None:
    state = begun(folder, task, first, cache)
    added(state, first, keys)
    with pytest.MonkeyPatch.context() as patch:
        if end == "draft":
            patch.setattr(state_store, "_sync", die)
        elif end == "moved":
            patch.setattr(StateFolder, "remove", die)
        if end != "before":
            state.store()
    raise Killed


def die(*arguments: Any) -> None:
    raise Killed


def batch(number: int, **more: Any) -> RunningTask:
    return replace(TASK, batch_id=number, task_attempt=number, **more)


def kinds(folder: StateFolder) -> list[tuple[int, str]]:
    return [(version.batch, version.kind) for version in folder.versions(QUEUE)]


def test_a_batch_writes_what_it_changed_and_now_and_then_everything(tmp_path: Path) -> None:
    folder, cache = folder_in(tmp_path), StateCache()
    offset = begin_with_many_keys(folder, cache)
    for number in range(1, 5):
        run(folder, batch(number), offset + number, "a", cache)
    assert kinds(folder) == [(0, "snapshot"), *((number, "changes") for number in range(1, 5))]
    sizes = [version.size for version in folder.versions(QUEUE)]
    assert max(sizes[1:]) * 5 < sizes[0]
    for number in range(5, 120):
        run(folder, batch(number), offset + number, "a", cache)
        versions = folder.versions(QUEUE)
        # Two rows of changes at most: the one that is needed, and the one a newer snapshot ended.
        assert sum(version.size for version in versions) < 4 * sizes[0] + 2 * max(sizes[1:])
    assert cache.loads == 0
    assert sum(kind == "snapshot" for _, kind in kinds(folder)) <= 2


def test_a_worker_reads_nothing_of_what_it_has_and_else_only_what_it_lacks(tmp_path: Path) -> None:
    folder, cache, read = folder_in(tmp_path), StateCache(), []
    offset = begin_with_many_keys(folder, cache)
    with pytest.MonkeyPatch.context() as patch:
        whole = StateFolder.read
        patch.setattr(StateFolder, "read", lambda *a: (read.append(a[2].batch), whole(*a))[1])
        run(folder, batch(1), offset, "a", cache)
        assert read == []
        run(folder, batch(2), offset + 1, "b")  # another worker
        assert read == [0, 1]
        run(folder, batch(3), offset + 2, "c", cache)
        assert read == [0, 1, 2]
    assert (cache.hits, cache.loads) == (2, 1)
    assert sums(begun(folder, batch(4), offset + 3)).keys() == {*MANY_KEYS, "a", "b", "c"}


def test_a_worker_takes_no_state_that_another_attempt_has_replaced(tmp_path: Path) -> None:
    folder, cache = folder_in(tmp_path), StateCache()
    run(folder, batch(0), 0, "a", cache)
    run(folder, batch(1), 1, "b", cache)  # its task failed in the sink, and runs again elsewhere
    run(folder, replace(batch(1), task_attempt=9), 1, "b")
    assert sums(begun(folder, batch(2), 2, cache)) == {"a": 1, "b": 1}
    assert cache.hits == 1  # of batch 1 alone


def test_what_killed_writers_have_left_is_deleted_with_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_state, "MAX_CHANGES", 0)
    folder = folder_in(tmp_path)
    for number in range(3):
        with pytest.raises(Killed):
            run_and_die(folder, batch(number), number, "a", StateCache(), "draft")
        run(folder, batch(number), number, "a")
        drafts = [path.name[:12] for path in tmp_path.rglob("*.draft")]
        assert drafts == [f"{number:012d}"]


def test_a_damaged_version_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    run(folder, TASK, 0, "ab")
    (path,) = tmp_path.rglob("*.snapshot")
    whole = path.read_bytes()
    damaged = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 3)
    ]
    for content in [*damaged, *(whole[:size] for size in range(0, len(whole), 3))]:
        path.write_bytes(content)
        with pytest.raises(StoreError, match="is damaged: restore it from a backup") as raised:
            begun(folder, batch(1), 2)
        assert str(path) in str(raised.value)


def test_a_file_of_another_queue_or_batch_is_no_state(tmp_path: Path) -> None:
    folder, other = folder_in(tmp_path), MessageQueue("orders", "b%1", 4)
    run(folder, TASK, 0, "ab")
    (own,) = tmp_path.rglob("*.snapshot")
    of_batch_0 = own.read_bytes()
    run(folder, batch(1), 2, "ab")
    state = QueueState(SCHEMA, {"sum": 0}, folder, TASK, "run", other, 0, StateCache())
    added(state, 0, "xy")
    state.store()
    (foreign,) = (path for path in tmp_path.rglob("*.snapshot") if "4" in path.parent.name)
    newest = max(own.parent.iterdir())
    for content, told in (
        (of_batch_0, "state of orders@b%1/3 after micro-batch 0"),
        (foreign.read_bytes(), "state of orders@b%1/4 after micro-batch 0"),
    ):
        newest.write_bytes(content)
        with pytest.raises(StoreError, match="another file under this name: restore") as raised:
            begun(folder, batch(2), 4)
        assert told in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff\xfe"])
def test_a_damaged_file_of_the_directory_is_named_with_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    identity = prepare_directory(str(tmp_path))
    (tmp_path / "ordermq-state.json").write_bytes(content)
    for look in (
        lambda: prepare_directory(str(tmp_path)),
        lambda: folder_in(tmp_path).check(identity, 0),
    ):
        with pytest.raises(StoreError, match=r"ordermq-state\.json is damaged: delete it, and"):
            look()


def test_what_the_file_system_refuses_says_what_to_do(tmp_path: Path) -> None:
    refused = "cannot be read or written: give driver and executors the right"
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=refused):
        prepare_directory(str(tmp_path / "file" / "states"))
    with pytest.raises(StoreError, match=refused):
        folder_in(tmp_path / "file").check("id", 0)
    folder = folder_in(tmp_path)
    run(folder, TASK, 0, "a")
    (path,) = tmp_path.rglob("*.snapshot")
    path.unlink()
    path.mkdir()  # neither read nor deleted as a file
    with pytest.raises(StoreError, match=refused):
        begun(folder, batch(1), 1)
    with pytest.raises(StoreError, match=refused):
        folder.remove(QUEUE, folder.versions(QUEUE))
    path.rmdir()
    path.parent.rmdir()
    path.parent.touch()
    with pytest.raises(StoreError, match=refused):
        begun(folder, batch(1), 1)


def test_a_write_that_fails_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_store, "_sync", full)
    with pytest.raises(StoreError, match=r"or make room; the batch runs again: .*No space left"):
        run(folder_in(tmp_path), TASK, 0, "a")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_missing_version_is_no_empty_state(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    offset = begin_with_many_keys(folder)
    for number in (1, 2):
        run(folder, batch(number), offset + number, "a")
    (snapshot,) = tmp_path.rglob("*.snapshot")
    snapshot.unlink()
    with pytest.raises(StoreError, match="before micro-batch 3 is incomplete: restore"):
        begun(folder, batch(3), offset + 3)
    # The batch that is repeated has left what it went on from.
    with pytest.raises(StoreError, match="version of batch 0 is not there"):
        begun(folder, batch(1), offset + 1)


def test_offsets_that_the_state_has_already_are_refused(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    run(folder, TASK, 5, "ab")
    with pytest.raises(OrderingError, match="begins at offset 6, but the stored state has offset"):
        begun(folder, batch(1), 6)
    assert begun(folder, batch(1), 7).last_offset == 6


def test_a_queue_in_two_tasks_is_refused(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    one, other = (begun(folder, replace(TASK, partition=number), 0) for number in (0, 1))
    added(one, 0, "a")
    added(other, 1, "b")
    one.store()
    with pytest.raises(OrderingError, match="rows of one queue are in two tasks: call the stage"):
        other.store()


def test_two_stages_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    run(folder, TASK, 0, "a")
    with pytest.raises(ConfigError, match=r"give each apply_with_keyed_state its own name="):
        run(folder, replace(TASK, stage="another"), 0, "a")
    run(folder, replace(TASK, stage="another", run_id="later"), 0, "a")  # after a restart


def test_another_schema_is_refused(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    run(folder, TASK, 0, "a")
    schema = SCHEMA.append(pa.field("mean", pa.float64()))
    with pytest.raises(ConfigError, match=r"keep state_schema and key as they were.*mean double"):
        QueueState(schema, {}, folder, batch(1), "run", QUEUE, 1, StateCache())


def test_states_leave_the_cache_when_there_is_no_room_and_are_read_again(tmp_path: Path) -> None:
    folder, cache = folder_in(tmp_path), StateCache()
    offset = begin_with_many_keys(folder, cache)
    assert len(cache) == 1
    used = cache.n_bytes
    state = QueueState(SCHEMA, {}, None, batch(1), "run", QUEUE, 0, cache)
    state.check_size(used + state.state.n_bytes)
    assert (len(cache), cache.evictions) == (1, 0)
    state.check_size(used + state.state.n_bytes - 1)
    assert (len(cache), cache.evictions, cache.n_bytes) == (0, 1, 0)
    again = begun(folder, batch(1), offset, cache)
    assert len(again.state) == len(MANY_KEYS)
    with pytest.raises(ConfigError, match="more than max_state_bytes allows, 1000: raise it"):
        again.check_size(1_000)


def test_rows_that_newer_ones_have_replaced_do_not_count_for_the_limit() -> None:
    schema = pa.schema([("key", pa.string()), ("text", pa.string())])
    state = QueueState(schema, {}, None, batch(1), "run", QUEUE, 0, StateCache())
    keys, texts = pa.array([f"k{n}" for n in range(100)]), pa.array(["x" * 1_000] * 100)
    rows = pa.RecordBatch.from_arrays([keys, texts], schema=schema)
    for _ in range(30):
        state.state.put(rows)
        state.check_size(200_000)
    assert state.state.get(keys).column("text").equals(texts)
    with pytest.raises(ConfigError, match="more than max_state_bytes allows, 100000"):
        state.check_size(100_000)


def test_a_directory_that_is_not_the_drivers_is_refused(tmp_path: Path) -> None:
    identity = prepare_directory(str(tmp_path / "shared"))
    assert prepare_directory(str(tmp_path / "shared")) == identity
    (tmp_path / "own").mkdir()
    with pytest.raises(ConfigError, match="is not the driver's in this executor: give one"):
        folder_in(tmp_path / "own").check(identity, 0)
    folder = folder_in(tmp_path / "shared")
    with pytest.raises(ConfigError, match="this is its micro-batch 1: give the directory"):
        folder.check(identity, 1)
    folder.check(identity, 0)
    folder.check(identity, 1)


def test_a_version_is_told_by_its_name() -> None:
    version = StateVersion(7, None, "0badcafe", "00000000", 3, 12, "snapshot")
    assert StateVersion.of_name(version.name) == version
    assert StateVersion.of_name(replace(version, previous=6, kind="changes").name) != version
    assert StateVersion.of_name(version.name + ".ab12.draft") is None


def test_stored_states_and_their_figures_are_shown(tmp_path: Path) -> None:
    folder, cache = folder_in(tmp_path), StateCache()
    prepare_directory(str(tmp_path))
    with pytest.raises(ConfigError, match="has no state: give the directory of the stage"):
        stored_states(str(tmp_path))
    offset = begin_with_many_keys(folder, cache)
    run(folder, batch(1), offset, "aab", cache)
    shown = stored_states(str(tmp_path), name="a stage/1").to_pylist()
    assert {row["key"]: row["sum"] for row in shown} == {
        **dict.fromkeys(MANY_KEYS, 1), "a": 2, "b": 1,
    }  # fmt: skip
    assert {(row["topic"], row["broker"], row["queue_id"]) for row in shown} == {
        ("orders", "b%1", 3)
    }
    (figures,) = state_statistics(str(tmp_path), name="a stage/1")
    wanted = {"batch": 1, "last_offset": offset + 2, "keys": len(MANY_KEYS) + 2, "versions": 2}
    wanted |= {"worker_hits": 1, "worker_loads": 0, "worker_queues": 1, "worker_evictions": 0}
    assert {name: figures[name] for name in wanted} == wanted
    assert figures["worker_state_bytes"] == figures["state_bytes"] > 10_000
    with pytest.raises(ConfigError, match="give the directory and the name of the stage"):
        stored_states(str(tmp_path))
    (tmp_path / "another").mkdir()
    with pytest.raises(ConfigError, match="states of 2 queries, another, query: give"):
        state_statistics(str(tmp_path))
    (tmp_path / "another").rmdir()
    # Files of others, and a queue's folder whose first writer was killed, are no states.
    for path in (tmp_path / ".DS_Store", tmp_path / "query" / "a%20stage%2F1" / "note"):
        path.touch()
    (tmp_path / "query" / "a%20stage%2F1" / "orders@b-9").mkdir()
    assert len(state_statistics(str(tmp_path), name="a stage/1")) == 1
    with pytest.raises(ConfigError, match="give an absolute path or a URI"):
        stored_states("states")


def test_the_numbers_of_queues_are_kept_by_topic_and_a_damaged_file_is_named(
    tmp_path: Path,
) -> None:
    folder = folder_in(tmp_path)
    folder.check(prepare_directory(str(tmp_path)), 0)
    assert folder.queue_counts("orders/%1") == {}
    folder.keep_queue_counts("orders/%1", {"a": 4, "b": 2})
    folder.keep_queue_counts("refunds", {"a": 1})
    assert folder_in(tmp_path).queue_counts("orders/%1") == {"a": 4, "b": 2}
    assert folder.queues() == []
    for content in ("[", "[]", '{"a": null}'):
        (tmp_path / "query/a%20stage%2F1/refunds.queues.json").write_text(content)
        with pytest.raises(StoreError, match=r"refunds.queues.json is damaged: delete it if"):
            folder.queue_counts("refunds")
