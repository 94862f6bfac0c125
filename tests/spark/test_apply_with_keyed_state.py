"""Stages with states beside their queues: by their function's calls, and in a session."""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_source import _Reading
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from test_apply_in_order import frame, run_stream, stream
from test_apply_with_state import OUT, STATE, assert_numbered, numbered

from ordermq import Message, Producer
from ordermq.errors import ConfigError, FunctionFailed, OrderingError
from ordermq.spark import (
    DeadLetter,
    apply_with_keyed_state,
    state_statistics,
    stored_states,
)
from ordermq.spark.stages import failure_policy
from ordermq.spark.stages.apply_with_keyed_state import StateSpec, is_temporary, run_with_state
from ordermq.spark.stages.output import FrameCollector, OutputShape
from ordermq.spark.stages.stage_invocation import StageSpec
from ordermq.spark.versions import BATCHES_OF_AVAILABLE_NOW
from tests.spark.conftest import Broker, needs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have the tests
cloudpickle.register_pickle_by_value(sys.modules[numbered.__module__])

TOTALS = "key string, offset bigint, number bigint, total bigint"
SUMS = "seen bigint, total bigint"
NEW = {"seen": 0, "total": 0}


def totals(rows: pd.DataFrame, states: pd.DataFrame) -> Any:
    """Each row's number and the sum of offsets within its key over all batches."""
    key = rows["sharding_key"]
    of_key = rows.groupby("sharding_key", sort=False)["offset"]
    found = pd.DataFrame({
        "key": key,
        "offset": rows["offset"],
        "number": of_key.cumcount() + key.map(states["seen"]),
        "total": of_key.cumsum() + key.map(states["total"]),
    })  # fmt: skip
    states["seen"] += of_key.size()
    states["total"] += of_key.sum()
    return found, states


def totals_of_key(rows: pd.DataFrame, state: Any) -> Any:
    """The same, by a call per key."""
    offsets = rows["offset"]
    before = state or NEW
    found = pd.DataFrame({
        "key": rows["sharding_key"],
        "offset": offsets,
        "number": np.arange(len(rows)) + before["seen"],
        "total": offsets.cumsum() + before["total"],
    })  # fmt: skip
    new = {"seen": before["seen"] + len(rows), "total": before["total"] + int(offsets.sum())}
    return found, new


def totals_of_arrow(rows: Any, states: Any) -> Any:
    """The same by Arrow, with a row-by-row running total."""
    at = pc.index_in(rows["sharding_key"], value_set=states["sharding_key"]).to_numpy()
    seen, total = (states[name].to_numpy().copy() for name in ("seen", "total"))
    numbers, running = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
    for row, offset in enumerate(rows["offset"].to_numpy()):
        key = at[row]
        total[key] += offset
        numbers[row], running[row] = seen[key], total[key]
        seen[key] += 1
    found = {"total": running, "number": numbers, "offset": rows["offset"]}
    kept = {"total": total, "sharding_key": states["sharding_key"], "seen": seen}
    return pa.table(found | {"key": rows["sharding_key"]}), pa.table(kept)


def totals_as_dict(rows: pd.DataFrame, state: Any) -> Any:
    """The same, by a call per key that returns a dict of columns."""
    found, new = totals_of_key(rows, state)
    columns = {name: column.to_numpy() for name, column in found.items()}
    return columns | {"key": rows["sharding_key"].tolist()}, new


FUNCTIONS = {
    "pandas": (totals, False),
    "per key": (totals_of_key, True),
    "per key, dict": (totals_as_dict, True),
    "arrow": (totals_of_arrow, False),
}


def expected(rows: list[tuple[str, int]]) -> list[tuple[str, int, int, int]]:
    """The rows of TOTALS for (key, offset), by a dict."""
    seen: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    found = []
    for key, offset in rows:
        total[key] += offset
        found.append((key, offset, seen[key], total[key]))
        seen[key] += 1
    return found


# Without a session: a stage is a generator over record batches.


def struct(ddl: str) -> StructType:
    """A schema of plain columns; Spark's own parser needs a session."""
    found = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        found.add(name, {"bigint": "long"}.get(kind, kind))
    return found


def states_of(ddl: str = SUMS, initial: Any = NEW, per_key: bool = False) -> StateSpec:
    shape = OutputShape(struct(ddl), "UTC")
    schema = pa.schema([("sharding_key", pa.string()), *shape.schema])
    return StateSpec("sharding_key", shape, schema, initial, per_key, "state", None, None, "d")


def spec_of(function: Any, engine: Any = "pandas", out: str = TOTALS, **more: Any) -> StageSpec:
    given = {"on_failure": None, "rows_per_call": None, "fence": None} | more
    output = OutputShape(struct(out), "UTC")
    stage = uuid.uuid4().hex  # the queues of another test, in the same process, are others
    return StageSpec(function, False, engine, output, stage, "remedy", **given)


def called(
    spec: StageSpec, states: StateSpec, batches: list[Any], max_bytes: int = 1 << 20
) -> list[Any]:
    return [row for one in run_with_state(spec, states, max_bytes, iter(batches))
            for row in one.to_pylist()]  # fmt: skip


def batch_of(keys: list[str | None], first: int = 0, queue: int = 0) -> Any:
    count = len(keys)
    return pa.RecordBatch.from_pydict({
        "topic": pa.array(["orders"] * count),
        "broker": pa.array(["b"] * count),
        "queue_id": pa.array([queue] * count, pa.int32()),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "sharding_key": pa.array(keys, pa.string()),
    })  # fmt: skip


KEYS = st.lists(st.lists(st.sampled_from(["a", "b", "", "ä", "a b"]), max_size=12), max_size=5)


@pytest.mark.parametrize("way", FUNCTIONS)
@settings(max_examples=25, deadline=None)
@given(KEYS, st.none() | st.integers(1, 3))
def test_rows_and_states_are_those_of_a_loop(way: str, runs: list[list[str]], most: Any) -> None:
    """Of two queues, one after the other; each begins with states of its own."""
    function, per_key = FUNCTIONS[way]
    spec = spec_of(function, "arrow" if way == "arrow" else "pandas", rows_per_call=most)
    batches, wanted, offset = [], [], 0
    for queue in (0, 1):
        rows: list[tuple[str, int]] = []
        for keys in runs:
            batches.append(batch_of(list(keys), offset, queue))
            rows += zip(keys, range(offset, offset + len(keys)), strict=True)
            offset += len(keys)
        wanted += expected(rows)
    found = called(spec, states_of(per_key=per_key), batches)
    rows_found = [tuple(row.values()) for row in found]
    # A stage by key returns key after key; within a key the order is the same.
    assert sorted(rows_found) == sorted(wanted)
    for key in {row[0] for row in wanted}:
        assert [r for r in rows_found if r[0] == key] == [w for w in wanted if w[0] == key]
    if not per_key:
        assert [row[1] for row in rows_found] == [row[1] for row in wanted]


def test_a_call_per_key_owns_its_rows_and_what_it_returned_before_is_safe() -> None:
    kept = pd.DataFrame({"key": ["-"], "offset": [0], "number": [0], "total": [0]})

    def function(rows: pd.DataFrame, state: Any) -> Any:
        assert list(rows.index) == list(range(len(rows)))
        before = rows["offset"].tolist()
        rows.loc[:, "offset"] = -1
        rows["new"] = rows["offset"]  # pandas warns of a write into a slice, and warnings fail
        kept.loc[0] = [rows["sharding_key"][0], before[0], len(before), sum(before)]
        return kept, None

    keys = ["b", "a", "b", "c", "b", "a"]
    found = called(spec_of(function), states_of(per_key=True), [batch_of(list(keys))])
    assert [tuple(row.values()) for row in found] == [
        ("b", 0, 3, 6), ("a", 1, 2, 6), ("c", 3, 1, 3),
    ]  # fmt: skip


RESULTS: list[Any] = [
    pd.DataFrame({"n": [1, 2**62 + 1], "name": ["a", None]}),
    pd.DataFrame({"n": [3.0, None], "name": ["b", "c"]}),
    pd.DataFrame({"name": ["d"], "n": [4]}),
    pd.DataFrame({"n": pd.array([5, None], "Int64"), "name": ["e", "f"]}),
    pd.DataFrame({"n": [], "name": []}),
    {"n": np.array([6, 7]), "name": np.array(["g", "h"], object)},
    {"n": [8, None], "name": pa.array(["i", "j"])},
    {"name": pd.Series(["k"]), "n": pa.chunked_array([[9]])},
    pa.table({"n": [10], "name": ["l"]}),
    None,
]


@given(st.lists(st.sampled_from(range(len(RESULTS))), max_size=12))
def test_results_of_many_calls_are_those_of_each(picked: list[int]) -> None:
    shape = OutputShape(struct("n bigint, name string"), "UTC")
    collector = FrameCollector(shape)
    results = [RESULTS[at] for at in picked]
    found = [row for one in results for batch in collector.add(one) for row in batch.to_pylist()]
    found += [row for batch in collector.rest() for row in batch.to_pylist()]
    assert found == [
        row for one in results for batch in shape.batches(one) for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"n": [1]}, "missing: \\['name'\\]"),
        ({"n": np.arange(2), "name": np.array(["a"], object)}, "lengths: {'n': 2, 'name': 1}"),
        ({"n": [1], "name": 3}, "returned a int as a column"),
        ({"n": np.zeros((1, 1)), "name": ["a"]}, "column 'n'"),
        (pd.DataFrame({"n": ["x"], "name": ["a"]}), "column 'n'"),
        (3, "returned a int: return a pandas DataFrame"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_by_both(result: Any, error: str) -> None:
    shape = OutputShape(struct("n bigint, name string"), "UTC")
    collector = FrameCollector(shape)
    with pytest.raises(ConfigError, match=error):
        shape.batches(result)
    with pytest.raises(ConfigError, match=error):
        [*collector.add(result), *collector.rest()]


def test_integers_with_missing_values_are_integers_in_pandas() -> None:
    seen = []

    def function(rows: Any, states: Any) -> Any:
        seen.append([str(kind) for kind in states.dtypes])
        states.loc["a", "n"] = 2**62 + 1
        states.loc["a", "name"] = "x"
        return None, states.loc[["a"]]

    states = states_of("n bigint, flag boolean, name string, mean double", {})
    called(spec_of(function), states, [batch_of(["a", "b"]), batch_of(["b", "a"], 2)])
    assert seen == [["Int64", "boolean", "object", "float64"]] * 2

    def check(rows: Any, states: Any) -> Any:
        return None, states

    out = called(spec_of(check), states, [batch_of(["a"])])
    assert out == []


def test_a_state_of_missing_values_is_forgotten_and_one_not_returned_stays() -> None:
    shown: list[dict[str, Any]] = []

    def function(rows: Any, states: Any) -> Any:
        shown.append(states["n"].to_dict())
        states["n"] = states["n"] + 1
        states.loc[states["n"] > 2, "n"] = None
        return None, states[states.index != "c"]

    states = states_of("n double", {"n": 0.0})
    batches = [batch_of(["a", "b", "c"] if at < 2 else ["c", "a"], at * 3) for at in range(4)]
    called(spec_of(function), states, batches)
    assert shown == [
        {"a": 0, "b": 0, "c": 0},
        {"a": 1, "b": 1, "c": 0},
        {"c": 0, "a": 2},
        {"c": 0, "a": 0},
    ]


def test_a_failing_row_becomes_a_dead_letter_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(
        failure_policy, "send_dead_letter", lambda t, c, row, q, r: sent.append(row["offset"])
    )

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(rows: Any, states: Any) -> Any:
            result = function(rows, states)
            if (rows["offset"] == 5).any():
                raise ValueError("offset 5")
            return result

        return failing

    keys = ["a", "b", "a", "c", "a", "b", "b", "a", "c"]
    wanted = [row for row in zip(keys, range(9), strict=True) if row[1] != 5]
    for function, per_key in (FUNCTIONS["pandas"], FUNCTIONS["per key"]):
        spec = spec_of(wrap(function), on_failure=DeadLetter("dead"))
        found = called(spec, states_of(per_key=per_key), [batch_of(list(keys))])
        assert sorted(tuple(row.values()) for row in found) == sorted(expected(wanted))
    assert sent == [5, 5]
    with pytest.raises(FunctionFailed, match="ValueError: offset 5"):
        called(spec_of(wrap(totals)), states_of(), [batch_of(list(keys))])


def returning(states: Any) -> Callable[..., Any]:
    return lambda rows, given: (None, states(given) if callable(states) else states)


@pytest.mark.parametrize(
    ("function", "engine", "error"),
    [
        (lambda rows, states: rows, "pandas", r"returned a DataFrame: return \(rows, states\)"),
        (returning(3), "pandas", "returned states as a int: return a DataFrame with the keys"),
        (returning(lambda s: s.drop(columns="seen")), "pandas", "states are not those of state_s"),
        (returning(lambda s: s.rename({"a": "z"})), "pandas", "of keys that the call does not ha"),
        (returning(lambda s: pd.concat([s, s])), "pandas", "or of a key twice: return at most one"),
        (returning(lambda s: s.reset_index(drop=True)), "pandas", "whose keys are no string: keep"),
        (returning(lambda s: s.assign(seen=[1.5, 2])), "pandas", "1.500000 was truncated"),
        (returning(lambda s: s.astype(object).assign(seen=2**64)), "pandas", "too large to conver"),
        (returning(3), "arrow", "returned states as a int: return a RecordBatch or a Table"),
        (returning(lambda s: s.select(["seen", "total"])), "arrow", "without the key, 'sharding_"),
    ],
)
def test_a_wrong_result_is_refused_with_what_to_return(
    function: Any, engine: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        called(spec_of(function, engine), states_of(), [batch_of(["a", "b"])])


def test_a_wrong_state_of_one_key_is_refused_with_what_to_return() -> None:
    for state, error in (
        ({"seen": 1}, r"returned a state of \['seen'\]: return the columns"),
        ({"seen": "x", "total": 0}, "does not fit state_schema"),
        ({"seen": 1.5, "total": 0}, "does not fit state_schema: .*1.500000 was truncated"),
        ({"seen": 2**64, "total": 0}, "does not fit state_schema: .*too large to convert"),
    ):
        with pytest.raises(ConfigError, match=error):
            called(spec_of(returning(state)), states_of(per_key=True), [batch_of(["a"])])


def test_a_state_of_one_key_keeps_its_nan_and_is_given_back_as_it_was() -> None:
    given: list[Any] = []

    def function(rows: Any, state: Any) -> Any:
        given.append(state)
        return None, {"mean": float("nan"), "at": datetime(2026, 1, 1)}

    shape = OutputShape(StructType().add("mean", "double").add("at", "timestamp"), "Asia/Shanghai")
    schema = pa.schema([("sharding_key", pa.string()), *shape.schema])
    states = StateSpec("sharding_key", shape, schema, {}, True, "state", None, None, "d")
    called(spec_of(function), states, [batch_of(["a"]), batch_of(["a"], 1)])
    assert given[0] is None
    assert given[1]["mean"] != given[1]["mean"]
    assert given[1]["at"] == datetime(2025, 12, 31, 16, tzinfo=UTC)


def test_a_row_without_a_key_and_a_queue_in_two_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"offset 8 of .* has no sharding_key: leave such rows"):
        called(spec_of(totals), states_of(), [batch_of(["a", None], 7)])
    parts = [batch_of(["a"], 0, 0), batch_of(["a"], 0, 1), batch_of(["a"], 1, 0)]
    with pytest.raises(OrderingError, match="rows of a queue come in two parts: call the stage"):
        called(spec_of(totals), states_of(), parts)


def test_a_state_beyond_the_limit_is_refused_with_what_to_do() -> None:
    keys: list[str | None] = [f"k{number}" for number in range(1_000)]
    with pytest.raises(ConfigError, match="more than max_state_bytes allows, 50000: raise it"):
        called(spec_of(totals), states_of(), [batch_of(keys)], max_bytes=50_000)


# In a session.


def rows_of_source(**options: str) -> list[tuple[int, str, int]]:
    """(queue, key, offset) of all rows of the memory source."""
    source = _Reading(options)
    found = []
    for queue in range(source.queues):
        rows = source.batch(queue, np.arange(source.rows, dtype=np.int64)).to_pylist()
        found += [(queue, row["sharding_key"], row["offset"]) for row in rows]
    return found


def assert_totals(rows: list[Any], **options: str) -> None:
    wanted = expected([(key, offset) for _, key, offset in rows_of_source(**options)])
    assert sorted(tuple(row) for row in rows) == sorted(wanted)


@needs(BATCHES_OF_AVAILABLE_NOW)
def test_the_example_keeps_exact_totals_over_a_restart(
    spark: SparkSession, broker: Broker, producer: Producer, tmp_path: Path
) -> None:
    import ordermq.spark
    from examples.keyed_state_on_spark import run

    ordermq.spark.register(spark)
    amounts = pd.DataFrame({"number": range(600)})
    amounts["key"] = "k" + (amounts["number"] * 7_919 % 60).astype(str)
    options = {"name_servers": broker.name_servers, "topic": "amounts"}
    for part in (amounts[:400], amounts[400:]):
        events = ((Message("amounts", b"%d" % row.number), row.key) for row in part.itertuples())
        assert len(producer.send_many(events)) == len(part)
        messages = spark.readStream.format("ordermq").options(**options).load()
        run(spark, messages, str(tmp_path))
    written = spark.read.json(str(tmp_path / "totals")).toPandas()
    assert len(written) == 600
    written = written.sort_values(["queue_id", "offset"])
    for key, own in amounts.groupby("key")["number"]:
        found = written[written["sharding_key"] == key]["total"]
        assert found.tolist() == own.cumsum().tolist()
    where = str(tmp_path / "states")
    states = stored_states(where).to_pandas().set_index("sharding_key")["total"]
    assert states.to_dict() == amounts.groupby("key")["number"].sum().to_dict()
    figures = state_statistics(where)
    assert sum(one["keys"] for one in figures) == 60
    assert max(one["batch"] for one in figures) == 1


def test_a_function_of_apply_with_state_runs_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    def number(rows: Any, state: Any, context: Any) -> Any:
        return numbered(rows, state, context)

    stage = apply_with_keyed_state(
        stream(spark), number, OUT, STATE, per_key=True, directory=str(tmp_path / "states")
    )
    assert_numbered(run_stream(stage, tmp_path / "checkpoint", "keyed_numbered"), 400)


def test_a_query_that_begins_at_the_latest_messages_has_state(
    spark: SparkSession, broker: Broker, producer: Producer, tmp_path: Path
) -> None:
    def send(count: int) -> None:
        for number in range(count):
            producer.send(Message("orders", b"%d" % number), sharding_key="a")

    def run() -> list[int]:
        found: list[int] = []
        source = spark.readStream.format("ordermq").options(
            name_servers=broker.name_servers, topic="orders", starting_offsets="latest"
        )
        stage = apply_with_keyed_state(source.load(), totals, TOTALS, SUMS, initial=NEW,
                                       directory=str(tmp_path / "states"))  # fmt: skip
        query = (
            stage.writeStream.foreachBatch(
                lambda rows, _: found.extend(r[2] for r in rows.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    send(3)
    assert run() == []
    send(2)
    assert run() == [0, 1]


def test_a_batch_query_begins_without_state_and_stores_none(spark: SparkSession) -> None:
    stage = apply_with_keyed_state(frame(spark), totals_of_arrow, TOTALS, SUMS, initial=NEW,
                                   engine="arrow")  # fmt: skip
    assert_totals(stage.collect())
    assert "Exchange" not in stage._jdf.queryExecution().executedPlan().toString()
    without = frame(spark).withColumn("sharding_key", F.lit(None).cast("string"))
    stage = apply_with_keyed_state(without, totals, TOTALS, SUMS)
    with pytest.raises(Exception, match="has no sharding_key: leave such rows out") as raised:
        stage.collect()
    assert "Traceback" not in str(raised.value)


def test_arguments_are_refused_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    rows, where = stream(spark), str(tmp_path)

    def refused(match: str, frame: Any = rows, state: str = SUMS, **given: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            apply_with_keyed_state(frame, totals, TOTALS, state, **{"directory": where} | given)

    refused("states in streaming need directory=", directory=None)
    refused("give an absolute path or a URI", directory="states")
    refused("a scheme that pyarrow.fs knows", directory="nowhere://states")
    refused("pass one_queue_per_key=True if each of its values", key="plane")
    refused("no column customer", key="customer")
    refused("key='mean' is a double", rows.selectExpr("*", "1.5D AS mean"),
            key="mean", one_queue_per_key=True)  # fmt: skip
    refused("give columns of the state's schema only", initial={"sum": 0})
    refused("initial does not fit state_schema", initial={"seen": "many"})
    refused("initial does not fit state_schema", initial={"seen": 1.5})
    refused("give the stage a name, which its folder gets", name="..")
    refused("give at least one, and not the key", state="sharding_key string")
    refused("max_state_bytes=0", max_state_bytes=0)


def test_temporary_files_are_of_one_machine() -> None:
    assert is_temporary("/tmp/states")
    assert is_temporary("file:///var/tmp/states")
    assert not is_temporary("/data/tmp/states")
    assert not is_temporary("/tmpfiles")
    assert not is_temporary("s3://bucket/tmp")
