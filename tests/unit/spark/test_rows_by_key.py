"""Runs of equal keys across record batches."""

from __future__ import annotations

from itertools import cycle, groupby, islice, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import OrderingError
from ordermq.spark.row_order import OrderCheck
from ordermq.spark.stages import rows_by_key
from ordermq.spark.stages.rows_by_key import KeyRuns, grouped_by_key, run_ends


def batches_of(keys: list[Any], cuts: list[int]) -> list[Any]:
    table = pa.table(
        {"key": pa.array(keys, pa.int64()), "row": pa.array(range(len(keys)), pa.int64())}
    )
    bounds = sorted({0, len(keys), *(cut % (len(keys) + 1) for cut in cuts)})
    return [
        batch
        for low, high in pairwise(bounds)
        for batch in table.slice(low, high - low).combine_chunks().to_batches()
    ]


KEYS = st.lists(st.none() | st.integers(0, 3), max_size=25)


@given(KEYS, st.lists(st.integers(0, 30), max_size=5))
def test_a_run_ends_where_the_key_changes(keys: list[Any], cuts: list[int]) -> None:
    runs = list(KeyRuns(["key"], 1_000, None).of(batches_of(keys, cuts)))
    found = [(run.key, run.rows.column("row").to_pylist()) for run in runs]
    wanted = [
        (key, [row for row, _ in group]) for key, group in groupby(enumerate(keys), lambda r: r[1])
    ]
    assert found == wanted
    assert not any(run.is_continued for run in runs)


@given(KEYS, st.lists(st.integers(0, 30), max_size=5), st.integers(1, 4))
def test_a_long_run_is_split_into_continued_parts(
    keys: list[Any], cuts: list[int], most: int
) -> None:
    runs = list(KeyRuns(["key"], most, None).of(batches_of(keys, cuts)))
    assert [row for run in runs for row in run.rows.column("row").to_pylist()] == list(
        range(len(keys))
    )
    before = object()
    for run in runs:
        assert run.is_continued == (run.key == before)
        before = run.key


def test_a_run_that_is_too_large_to_be_joined_is_split_into_continued_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = pa.record_batch({"key": [7] * 4, "body": [b"x" * 1_000] * 4})
    monkeypatch.setattr(rows_by_key, "_MOST_BYTES", 2 * batch.nbytes)
    runs = list(KeyRuns(["key"], 1_000, None).of([batch] * 5))
    assert [(run.rows.num_rows, run.is_continued) for run in runs] == [
        (8, False),
        (8, True),
        (4, True),
    ]


@given(KEYS)
def test_grouping_keeps_the_order_within_a_key(keys: list[Any]) -> None:
    if not keys:
        return
    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.int64()), "row": range(len(keys))})
    rows = grouped_by_key(batch, ["key"]).to_pylist()
    assert sorted(row["row"] for row in rows) == list(range(len(keys)))
    ends = run_ends([grouped_by_key(batch, ["key"]).column("key")])
    assert len(ends) == len(set(keys))
    for key in set(keys):
        own = [row["row"] for row in rows if row["key"] == key]
        assert own == sorted(own)


def placed(rows: list[tuple[int, int, int]], brokers: str = "b") -> Any:
    """Rows of (key, queue id, offset); their brokers by turns."""
    return pa.RecordBatch.from_pydict({
        "key": [key for key, _, _ in rows],
        "topic": ["t"] * len(rows),
        "broker": list(islice(cycle(brokers), len(rows))),
        "queue_id": pa.array([queue for _, queue, _ in rows], pa.int32()),
        "offset": [offset for _, _, offset in rows],
    })  # fmt: skip


def test_offsets_rise_within_a_key_and_restart_with_the_next() -> None:
    runs = KeyRuns(["key"], 100, OrderCheck("look"))
    good = placed([(1, 0, 5), (1, 0, 6), (1, 1, 2), (2, 0, 1)])
    assert [run.queue and run.queue.queue_id for run in runs.of([good])] == [None, 0]
    parts = [placed([(1, 0, 5), (1, 1, 2)]), placed([(1, 0, 5)])]
    with pytest.raises(OrderingError, match="offset 5 arrives twice"):
        list(KeyRuns(["key"], 100, OrderCheck("look")).of(parts))


def test_order_is_checked_within_a_key_that_begins_and_ends_in_a_batch() -> None:
    good = placed([(1, 0, 9), (2, 0, 5), (2, 0, 6), (3, 0, 2), (3, 1, 1), (4, 0, 1)])
    found = [
        run.queue and run.queue.queue_id for run in KeyRuns(["key"], 9, OrderCheck("")).of([good])
    ]
    assert found == [0, 0, None, 0]
    assert [run.queue for run in KeyRuns(["key"], 9, None).of([good])] == [None] * 4
    for wrong in ([(2, 0, 6), (2, 0, 6)], [(2, 0, 6), (2, 1, 1), (2, 0, 5)]):
        rows = placed([(1, 0, 9), *wrong, (3, 0, 1)])
        with pytest.raises(OrderingError, match=r"offset [56] arrives"):
            list(KeyRuns(["key"], 9, OrderCheck("look")).of([rows]))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=20),
    st.none() | st.integers(0, 19),
    st.sampled_from(("b", "bc")),
)
def test_each_run_has_its_queue_or_an_error_as_if_its_rows_were_compared_one_by_one(
    places: list[tuple[int, int]], moved: int | None, brokers: str
) -> None:
    # In order, but for one row at most.
    rows = [
        (key, queue_id, 0 if at == moved else at + 1)
        for at, (key, queue_id) in enumerate(sorted(places, key=lambda place: place[0]))
    ]
    batch = placed(rows, brokers)
    wanted: list[tuple[int, set[tuple[str, int]]]] = []
    is_in_order = True
    for key, group in groupby(enumerate(rows), lambda row: row[1][0]):
        last: dict[tuple[str, int], int] = {}
        for at, (_, queue_id, offset) in group:
            queue = brokers[at % len(brokers)], queue_id
            is_in_order &= offset > last.get(queue, -1)
            last[queue] = offset
        wanted.append((key, set(last)))
    runs = KeyRuns(["key"], 100, OrderCheck("look")).of([batch])
    if not is_in_order:
        with pytest.raises(OrderingError, match="out of order"):
            list(runs)
        return
    for run, (key, queues) in zip(runs, wanted, strict=True):
        found = run.queue and {(run.queue.broker_name, run.queue.queue_id)}
        assert (run.key, found) == (key, queues if len(queues) == 1 else None)
