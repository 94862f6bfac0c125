"""Ordered stages: a function over rows, each queue's, or each key's, in offset order.

The plans and what they cost: spark.md. Which is chosen, `apply_in_order` says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError
from ordermq.spark.row_order import PLACE_COLUMNS, OrderCheck, Places, check_columns
from ordermq.spark.schema import LEASE_COLUMN
from ordermq.spark.stages.concurrent_keys import Lanes, lane_key
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey
from ordermq.spark.stages.key_runs import KeyRun, KeyRuns, regrouped
from ordermq.spark.stages.output import Gathered, OutputShape, struct_of
from ordermq.spark.stages.stage_invocation import Calls, Engine, StageSpec, takes_context

SHARDING_KEY = "sharding_key"
MOST_ROWS_OF_A_KEY = 100_000

_QUEUE_REMEDY = (
    "call the stage straight on the source's DataFrame, before any repartition, join, sort, "
    "distinct or union with itself; or give key=... and it shuffles and sorts by itself"
)
_KEY_REMEDY = (
    "the source was united or joined with itself, or read twice; use drop_repeats=True, or read "
    "each offset once"
)


def apply_in_order(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType | str,
    *,
    key: str | Sequence[str] | None = None,
    per_key: bool | None = None,
    order_by: Sequence[str] = PLACE_COLUMNS,
    engine: Engine = "pandas",
    on_failure: DeadLetter | None = None,
    max_in_flight: int = 1,
    rows_a_call: int | None = None,
    n_partitions: int | None = None,
    barrier: bool = False,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with rows in order; its rows are the new DataFrame.

    | key | plan | a call sees |
    |---|---|---|
    | none, or the producer's sharding key | no shuffle: a queue is a partition | rows of one \
queue, offsets rising |
    | another, in batch | shuffle and sort by key, `order_by` | one key's rows |
    | another, in streaming | `groupBy(key).applyInArrow`, sorted inside: a key's rows of a \
micro-batch are in memory together | one key's rows |

    Every run checks that each queue's offsets rise, natively, and raises where they do not. In
    order means inside a run of the query: a micro-batch that failed comes again, so effects
    outside happen at least once (make them idempotent by the context).

    Args:
        frame: rows of the ordermq source, with the columns topic, broker, queue_id and offset.
        function: (rows) or (rows, context) -> rows or None. Rows are a pandas DataFrame, or a
            pyarrow RecordBatch; what it returns must have the schema's columns, in any order.
            `context` is a `StageContext`.
        schema: of what it returns.
        key: whose rows must stay in order.
        per_key: one call for each key's rows instead of rows of many keys in one; the default
            is so exactly where the stage shuffles.
        order_by: within a key, after a shuffle. If it is not the default, offsets are not
            checked there.
        engine: "pandas" or "arrow". Timestamps arrive in the session's time zone; those
            without a zone that come back are meant in it.
        on_failure: what becomes of a row the function raises on: None fails the query and says
            which; else DeadLetter or ParkKey. The function is then called again with parts of
            the rows, until the failing one stands alone.
        max_in_flight: more than 1 calls the function row by row, rows of different keys in so
            many threads. Only without a shuffle.
        rows_a_call: at most so many rows a call; None: as they come.
        n_partitions: of the shuffle; None leaves it to Spark.
        barrier: all tasks of the stage at once, one attempt each; needs a free slot for each.
        allow_speculation: start although spark.speculation is true.
        client_options: name servers, account, group, where the source's cannot be seen in the
            plan (Spark Connect, a checkpointed DataFrame).
        fence_interval_ms: in ordered mode, how long an executor believes a lock it has seen.
    Raises: ConfigError: an argument does not fit the others, or the DataFrame, or the session.
    """
    keys = [key] if isinstance(key, str) else list(key or ())
    shuffles = bool(keys) and keys != [SHARDING_KEY]
    check_columns(frame, *keys, *(name for name in order_by if name not in PLACE_COLUMNS))
    check_speculation(frame.sparkSession, allow_speculation)
    _check_arguments(frame, on_failure, max_in_flight, rows_a_call, shuffles, barrier)
    spec = make_spec(
        frame,
        function,
        struct_of(schema),
        engine=engine,
        remedy=_KEY_REMEDY if shuffles else _QUEUE_REMEDY,
        on_failure=on_failure,
        rows_a_call=rows_a_call,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
    )
    target = struct_of(schema)
    by_key = shuffles if per_key is None else per_key
    if not shuffles:
        lane = lane_key(on_failure, keys[0] if keys else None)
        run = _queue_stage(spec, [SHARDING_KEY] if by_key else [], max_in_flight, lane)
        return frame.mapInArrow(run, target, barrier=barrier)
    is_checked = tuple(order_by) == PLACE_COLUMNS
    if frame.isStreaming:
        return frame.groupBy(*keys).applyInArrow(
            _group_stage(spec, keys, list(order_by), is_checked), target
        )
    moved = frame.repartition(*([n_partitions] if n_partitions else []), *keys)
    run = _key_stage(spec, keys, by_key, is_checked)
    return moved.sortWithinPartitions(*keys, *order_by).mapInArrow(run, target, barrier=barrier)


def make_spec(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType,
    *,
    engine: Engine,
    remedy: str,
    on_failure: DeadLetter | None,
    rows_a_call: int | None,
    client_options: Mapping[str, str] | None,
    fence_interval_ms: int,
    rows: int = 1,
) -> StageSpec:
    """What executors need of a stage.

    Raises: ConfigError: see `apply_in_order`.
    """
    if engine not in ("pandas", "arrow"):
        raise ConfigError(f"engine={engine!r}: expected 'pandas' or 'arrow'")
    client: Mapping[str, str] = client_options or {}
    fence = None
    if LEASE_COLUMN in frame.columns:
        client = client or one_source(frame, "the fence of an ordered stream (column `lease`)")
        group = client.get("group", "")
        if not group:
            raise ConfigError("client_options needs 'group', whose locks the source holds")
        fence = ExecutorLease(group, tuple(sorted(client.items())), fence_interval_ms)
    if on_failure is not None:
        client = client or one_source(frame, f"on_failure={type(on_failure).__name__}")
    return StageSpec(
        function=function,
        with_context=takes_context(function, rows),
        engine=engine,
        output=OutputShape(schema, session_time_zone(frame.sparkSession)),
        stage=uuid.uuid4().hex,
        remedy=remedy,
        on_failure=on_failure,
        rows_a_call=rows_a_call,
        fence=fence,
        client=tuple(sorted(client.items())),
    )


def _check_arguments(
    frame: DataFrame,
    on_failure: DeadLetter | None,
    max_in_flight: int,
    rows_a_call: int | None,
    shuffles: bool,
    barrier: bool,
) -> None:
    if not 1 <= max_in_flight <= 1_000:
        raise ConfigError(f"max_in_flight={max_in_flight}: expected 1..1000")
    if rows_a_call is not None and rows_a_call < 1:
        raise ConfigError(f"rows_a_call={rows_a_call}: expected at least 1")
    if shuffles and max_in_flight > 1:
        raise ConfigError("max_in_flight works without a shuffle: key=None or 'sharding_key'")
    if shuffles and barrier and frame.isStreaming:
        raise ConfigError("barrier has no effect on applyInArrow: leave it, or the key, out")
    if not isinstance(on_failure, ParkKey):
        return
    if on_failure.key not in frame.columns:
        raise ConfigError(f"ParkKey(key={on_failure.key!r}): the DataFrame has no such column")
    if frame.isStreaming and on_failure.directory is None:
        raise ConfigError(
            "ParkKey in streaming needs directory=..., on a file system all executors share: "
            "the next micro-batch may run in another process, which must know the parked keys"
        )


def _queue_stage(
    spec: StageSpec, by: list[str], max_in_flight: int, lane: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        return run_queues(spec, batches, by, max_in_flight, lane)

    return stage


def _key_stage(
    spec: StageSpec, keys: list[str], by_key: bool, is_checked: bool
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        return run_keys(spec, batches, keys, by_key, is_checked)

    return stage


def _group_stage(
    spec: StageSpec, keys: list[str], order_by: list[str], is_checked: bool
) -> Callable[[Any], Any]:
    def stage(table: Any) -> Any:
        return run_group(spec, table, keys, order_by, is_checked)

    return stage


# On executors.


def run_queues(
    spec: StageSpec, batches: Iterator[Any], by: list[str], max_in_flight: int, lane: str
) -> Iterator[Any]:
    """Rows as the source gives them: each queue's run checked, then called with."""
    calls, check, gathered = Calls(spec), OrderCheck(spec.remedy), Gathered()
    lanes = Lanes(calls, lane, max_in_flight) if max_in_flight > 1 else None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            places = Places(batch)
            for queue, first, end in check.runs(places, 0, batch.num_rows):
                if by:
                    run = regrouped(batch.slice(first, end - first), by)
                    answers = _by_key(calls, run, by)
                elif lanes is not None:
                    answers = lanes.of_queue(batch, queue, places.offsets, first, end)
                else:
                    answers = calls.of_queue(batch, queue, places.offsets, first, end)
                for answer in answers:
                    yield from gathered.add(answer)
        yield from gathered.rest()
    finally:
        if lanes is not None:
            lanes.close()


def _by_key(calls: Calls, rows: Any, by: list[str]) -> Iterator[list[Any]]:
    # Regrouped within a run that was checked; each key's rows are in order still.
    for run in KeyRuns(by, MOST_ROWS_OF_A_KEY, OrderCheck("")).of([rows]):
        yield from _called(calls, run)


def run_keys(
    spec: StageSpec, batches: Iterator[Any], keys: list[str], by_key: bool, is_checked: bool
) -> Iterator[Any]:
    """Rows sorted by key: a call for each run of one, or for a batch of several whole runs."""
    calls, gathered = Calls(spec), Gathered()
    check = OrderCheck(spec.remedy) if is_checked else None
    runs = KeyRuns(keys, MOST_ROWS_OF_A_KEY, check).of(batches)
    if not by_key:
        runs = _joined(runs)
    for run in runs:
        for answer in _called(calls, run):
            yield from gathered.add(answer)
    yield from gathered.rest()


def _joined(runs: Iterator[KeyRun]) -> Iterator[KeyRun]:
    """Whole runs of several keys in one, so that a call is worth its price."""
    together = Gathered()
    for run in runs:
        for rows in together.add([run.rows]):
            yield KeyRun(None, rows, None, False)
    for rows in together.rest():
        yield KeyRun(None, rows, None, False)


def _called(calls: Calls, run: KeyRun) -> Iterator[list[Any]]:
    return calls.of_key(run.rows, run.queue, run.key, run.is_continued)


def run_group(
    spec: StageSpec, table: Any, keys: list[str], order_by: list[str], is_checked: bool
) -> Any:
    """One key's rows of a micro-batch, from Spark in any order."""
    import pyarrow as pa

    calls = Calls(spec)
    sorted_rows = table.sort_by([(name, "ascending") for name in order_by]).combine_chunks()
    check = OrderCheck(spec.remedy) if is_checked else None
    found: list[Any] = []
    for run in KeyRuns(keys, max(table.num_rows, 1), check).of(sorted_rows.to_batches()):
        for answer in _called(calls, run):
            found += answer
    return pa.Table.from_batches(found, schema=spec.output.schema)


FORMAT = "ordermq"


def check_speculation(spark: SparkSession, allowed: bool) -> None:
    """Refuse a session that runs two attempts of a task at once.

    Raises: ConfigError: spark.speculation is true.
    """
    if not allowed and spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation is true: Spark would run two attempts of one task at the same "
            "time, and a slow one would go on after its batch is done. Set it to false, or pass "
            "allow_speculation=True where the function's effects may happen twice and late"
        )


def session_time_zone(spark: SparkSession) -> str:
    """What a timestamp without a zone is meant in."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def source_options(frame: DataFrame) -> list[dict[str, str]]:
    """The options of each ordermq source in a DataFrame's plan; [] where they cannot be seen.

    Spark Connect keeps its plan at the server; a DataFrame of a checkpoint has no source.
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        return []
    leaves = java.queryExecution().analyzed().collectLeaves()
    found = [_options_of(leaves.apply(at)) for at in range(leaves.size())]
    return [options for options in found if options is not None]


def _options_of(leaf: Any) -> dict[str, str] | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelationV2":
        if leaf.sourceName().lower() != FORMAT:
            return None
        return dict(_entries(leaf.extraOptions()))
    if kind == "DataSourceV2Relation":
        if not leaf.table().name().lower().endswith(FORMAT):
            return None
        return dict(_entries(leaf.options()))
    return None


def _entries(java_map: Any) -> Iterator[tuple[str, str]]:
    walk = java_map.asCaseSensitiveMap().entrySet().iterator()
    while walk.hasNext():
        entry = walk.next()
        yield str(entry.getKey()), str(entry.getValue())


def one_source(frame: DataFrame, purpose: str) -> Mapping[str, str]:
    """The options of the only source.

    Args: purpose: what they are needed for, for the error.
    Raises: ConfigError: there is none to be seen, or several that differ.
    """
    found = source_options(frame)
    different = {tuple(sorted(options.items())) for options in found}
    if len(different) == 1:
        return found[0]
    what = "no ordermq source is" if not found else f"{len(different)} ordermq sources are"
    raise ConfigError(
        f"{purpose} needs name servers and account, and {what} to be seen in the DataFrame's "
        "plan: give them as client_options={'name_servers': ..., 'group': ...}"
    )
