"""`apply_in_order`: a function over rows, those of each queue, or of each key, in offset order.

The first half plans on the driver, the second half runs on executors. docs/spark-stages.md has
the plans and their costs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.arrow_schemas import group_schema
from ordermq.spark.packages import require_packages
from ordermq.spark.row_order import (
    OrderCheck,
    RowOrigins,
    check_case,
    check_columns,
    check_not_split,
)
from ordermq.spark.schema import LEASE_COLUMN, ORIGIN_COLUMNS, SHARDING_KEY
from ordermq.spark.session import is_on
from ordermq.spark.shown_errors import text_first
from ordermq.spark.stages.executor_lease import ExecutorLease
from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey
from ordermq.spark.stages.output import BatchCollector, OutputShape, struct_of
from ordermq.spark.stages.rows_by_key import (
    ConcurrentKeys,
    KeyRun,
    KeyRuns,
    concurrency_key,
    grouped_by_key,
)
from ordermq.spark.stages.stage_invocation import (
    Engine,
    StageFunction,
    StageInvocation,
    StageSpec,
    takes_context,
)

# A longer run of one key is called with in parts, so that one key cannot fill the memory.
MAX_ROWS_OF_A_KEY = 100_000
_FORMAT = "ordermq"

_QUEUE_REMEDY = (
    "call the stage straight on the source's DataFrame, before any repartition, join, sort, "
    "distinct or union with itself; or give key=..., and it shuffles and sorts by itself"
)
_KEY_REMEDY = (
    "read each offset once, or use apply_with_state(drop_repeats=True); the source was united or "
    "joined with itself, or read twice"
)


def apply_in_order(
    frame: DataFrame,
    function: Callable[..., Any],
    schema: StructType | str,
    *,
    key: str | Sequence[str] | None = None,
    per_key: bool | None = None,
    order_by: Sequence[str] = ORIGIN_COLUMNS,
    engine: Engine = "pandas",
    on_failure: DeadLetter | None = None,
    max_in_flight: int = 1,
    rows_per_call: int | None = None,
    n_partitions: int | None = None,
    barrier: bool = False,
    allow_speculation: bool = False,
    client_options: Mapping[str, str] | None = None,
    fence_interval_ms: int = 1_000,
) -> DataFrame:
    """Call a function with rows in order; its results are the rows of the new DataFrame.

    | key | plan | a call gets |
    |---|---|---|
    | none, or the producer's sharding key | no shuffle: a queue is whole in a task | rows of one \
queue, offsets rising |
    | another, in batch | shuffle and sort by key, `order_by` | one key's rows |
    | another, in streaming | `groupBy(key).applyInArrow`, sorted inside: a key's rows of a \
micro-batch are in memory together | one key's rows |

    Every run checks natively that the offsets of each queue rise, and raises where they do not.
    Order holds within a run of the query: a micro-batch that failed runs again, so effects
    outside happen at least once. Make them idempotent with the context.

    Args:
        frame: rows of the ordermq source, with the columns topic, broker, queue_id and offset.
        function: (rows) or (rows, context) -> rows or None. Rows are a pandas DataFrame, or a
            pyarrow RecordBatch; the result, of either kind, a pyarrow Table or a dict of columns,
            must have the schema's columns, in any order.
            `context` is a `StageContext`. A function decorated with `pandas_udf` takes columns
            and is refused: see `ordered_udf`.
        schema: of the result.
        key: column or columns of the key whose rows must stay in order.
        per_key: make one call per key instead of one for rows of many keys. The default is
            True where the stage shuffles, else False.
        order_by: the order within a key, after a shuffle. With another than the default, offsets
            are not checked there.
        engine: "pandas" or "arrow". Timestamps arrive in the session's time zone; a result
            without a zone is taken to be in it.
        on_failure: what to do with a row on which the function raises: None fails the query and
            names the row; else DeadLetter or ParkKey. The function is then called again with
            parts of the rows, until the failing row is alone.
        max_in_flight: with more than 1, call the function row by row, with rows of different
            keys in this many threads. Only without a shuffle.
        rows_per_call: maximum number of rows per call; None: as they arrive.
        n_partitions: number of partitions of the shuffle; None leaves it to Spark.
        barrier: run all tasks of the stage at once, one attempt each; needs a free slot per task.
        allow_speculation: start although spark.speculation is true.
        client_options: name servers, account and group, where the source's cannot be found in
            the plan (Spark Connect, a checkpointed DataFrame).
        fence_interval_ms: in ordered mode, how long an executor believes a confirmed lock.
    Raises: ConfigError: an argument does not fit the others, the DataFrame or the session.
    """
    keys = [key] if isinstance(key, str) else list(key or ())
    # A sharding key lives in one queue, and a queue is whole in one task: nothing to shuffle.
    shuffles = bool(keys) and keys != [SHARDING_KEY]
    # All checks before the plan: an error in a task comes late, in a stack trace of Spark.
    check_columns(frame, *keys, *(name for name in order_by if name not in ORIGIN_COLUMNS))
    if not shuffles:
        check_not_split(frame)
    check_speculation(frame.sparkSession, allow_speculation)
    check_arguments(frame, on_failure, max_in_flight, rows_per_call, shuffles, barrier)
    target = struct_of(schema)
    spec = make_spec(
        frame,
        StageFunction(function, engine, rows_per_call),
        target,
        remedy=_KEY_REMEDY if shuffles else _QUEUE_REMEDY,
        on_failure=on_failure,
        client_options=client_options,
        fence_interval_ms=fence_interval_ms,
    )
    by_key = shuffles if per_key is None else per_key
    if not shuffles:
        concurrent_by = concurrency_key(on_failure, keys[0] if keys else None)
        run = _queue_stage(spec, [SHARDING_KEY] if by_key else [], max_in_flight, concurrent_by)
        return frame.mapInArrow(run, target, barrier=barrier)
    is_checked = tuple(order_by) == ORIGIN_COLUMNS
    if frame.isStreaming:
        # Spark refuses to sort a streaming DataFrame, so the sort is inside the group's function.
        made = group_schema(frame.sparkSession, target)
        grouped = _group_stage(spec, keys, list(order_by), is_checked, made)
        return frame.groupBy(*keys).applyInArrow(grouped, target)
    # Not groupBy().applyInArrow: Spark gives no order of rows inside a group, and merges blocks
    # in any order as soon as a shuffle spills. A sort behind the repartition is kept.
    moved = frame.repartition(*([n_partitions] if n_partitions else []), *keys)
    run = _key_stage(spec, keys, by_key, is_checked)
    return moved.sortWithinPartitions(*keys, *order_by).mapInArrow(run, target, barrier=barrier)


# Planning, on the driver.


def make_spec(
    frame: DataFrame,
    function: StageFunction,
    schema: StructType,
    *,
    remedy: str,
    on_failure: DeadLetter | None,
    client_options: Mapping[str, str] | None,
    fence_interval_ms: int,
) -> StageSpec:
    """Return what executors need of a stage.

    Raises: ConfigError: see `apply_in_order`.
    """
    check_engine(function.engine)
    client: Mapping[str, str] = client_options or {}
    fence = None
    # The column is the source's word that the stream is ordered; a user who drops it before the
    # stage gives up the check.
    if LEASE_COLUMN in frame.columns:
        client = client or source_options(frame, "the lease check of an ordered stream")
        fence = ExecutorLease.of(client, fence_interval_ms)
    if on_failure is not None:
        client = client or source_options(frame, f"on_failure={type(on_failure).__name__}")
    return StageSpec(
        function=function.call,
        with_context=takes_context(function.call, function.arguments),
        engine=function.engine,
        output=OutputShape(schema, session_time_zone(frame.sparkSession)),
        stage=uuid.uuid4().hex,  # two stages of one query must not share process queues
        remedy=remedy,
        on_failure=on_failure,
        rows_per_call=function.rows_per_call,
        fence=fence,
        # A sorted tuple, because a key of `ProcessCache` must be hashable and equal in every task.
        client=tuple(sorted(client.items())),
    )


def check_arguments(
    frame: DataFrame,
    on_failure: DeadLetter | None,
    max_in_flight: int,
    rows_per_call: int | None,
    shuffles: bool,
    barrier: bool,
) -> None:
    """Refuse arguments of a stage that do not fit each other, or the DataFrame.

    Raises: ConfigError: names them.
    """
    if not 1 <= max_in_flight <= 1_000:
        raise ConfigError(f"max_in_flight={max_in_flight}: expected 1..1000")
    if rows_per_call is not None and rows_per_call < 1:
        raise ConfigError(f"rows_per_call={rows_per_call}: expected at least 1")
    if shuffles and max_in_flight > 1:
        raise ConfigError("max_in_flight needs a stage without shuffle: key=None or 'sharding_key'")
    if shuffles and barrier and frame.isStreaming:
        raise ConfigError("barrier has no effect on applyInArrow: remove barrier, or the key")
    if on_failure is not None:
        check_case(frame, COLUMNS)  # a dead letter has those that it finds
    if not isinstance(on_failure, ParkKey):
        return
    if on_failure.key not in frame.columns:
        raise ConfigError(f"ParkKey(key={on_failure.key!r}): the DataFrame has no such column")
    if frame.isStreaming and on_failure.directory is None:
        raise ConfigError(
            "ParkKey in streaming needs directory=..., on a file system that all executors share: "
            "the next micro-batch may run in another process, which must know the parked keys"
        )


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist, or that lacks a package.

    Raises: ConfigError: names the two, or the package.
    """
    if engine not in ("pandas", "arrow"):
        raise ConfigError(f"engine={engine!r}: expected 'pandas' or 'arrow'")
    if engine == "pandas":
        require_packages("pandas")


def check_speculation(spark: SparkSession, allowed: bool) -> None:
    """Refuse a session that runs two attempts of a task at once.

    Raises: ConfigError: spark.speculation is true.
    """
    if not allowed and is_on(spark, "spark.speculation"):
        raise ConfigError(
            "spark.speculation is true: set it to false, or pass allow_speculation=True where the "
            "function's effects may happen twice and late. Spark would run two attempts of one "
            "task at the same time, and a slow one would go on after its batch is done"
        )


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone of timestamps that have none."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def source_options(frame: DataFrame, purpose: str) -> Mapping[str, str]:
    """Return the options of the ordermq source in a DataFrame's plan.

    Args: purpose: what they are needed for, for the error.
    Raises: ConfigError: the plan shows no such source, or several that differ.
    """
    found = sources_of(frame)
    if len(found) == 1:
        return found[0]
    what = "no ordermq source" if not found else f"{len(found)} different ordermq sources"
    raise ConfigError(
        f"{purpose} needs name servers and account: give client_options={{'name_servers': ..., "
        f"'group': ...}}. The DataFrame's plan shows {what}"
    )


def sources_of(frame: DataFrame) -> list[dict[str, str]]:
    """Return the options of the different ordermq sources that a DataFrame's plan shows."""
    # A self-join shows one source twice, with the same options: that is still one.
    different = {tuple(sorted(options.items())) for options in _sources_in_plan(frame)}
    return [dict(options) for options in sorted(different)]


def _sources_in_plan(frame: DataFrame) -> list[dict[str, str]]:
    # PySpark has no way to ask a DataFrame for its source, so the JVM's analyzed plan is walked.
    # Spark Connect keeps its plan at the server; a checkpointed DataFrame has no source.
    java = getattr(frame, "_jdf", None)
    if java is None:
        return []
    leaves = java.queryExecution().analyzed().collectLeaves()
    found = [_options_of_leaf(leaves.apply(at)) for at in range(leaves.size())]
    return [options for options in found if options is not None]


def _options_of_leaf(leaf: Any) -> dict[str, str] | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelationV2":
        if leaf.sourceName().lower() != _FORMAT:
            return None
        return dict(_entries(leaf.extraOptions()))
    if kind == "DataSourceV2Relation":
        # Only the end is compared: Spark may put a prefix before the format's name.
        if not leaf.table().name().lower().endswith(_FORMAT):
            return None
        return dict(_entries(leaf.options()))
    return None


def _entries(java_map: Any) -> Iterator[tuple[str, str]]:
    walk = java_map.asCaseSensitiveMap().entrySet().iterator()
    while walk.hasNext():
        entry = walk.next()
        yield str(entry.getKey()), str(entry.getValue())


# Spark pickles the function it is given. These closures carry only what the executors need.


def _queue_stage(
    spec: StageSpec, by: list[str], max_in_flight: int, concurrent_by: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        with text_first():
            yield from run_queues(spec, batches, by, max_in_flight, concurrent_by)

    return stage


def _key_stage(
    spec: StageSpec, keys: list[str], by_key: bool, is_checked: bool
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        with text_first():
            yield from run_keys(spec, batches, keys, by_key, is_checked)

    return stage


def _group_stage(
    spec: StageSpec, keys: list[str], order_by: list[str], is_checked: bool, schema: Any
) -> Callable[[Any], Any]:
    def stage(table: Any) -> Any:
        with text_first():
            return run_group(spec, table, keys, order_by, is_checked).cast(schema)

    return stage


# Running, on executors.


class QueueCaller(Protocol):
    """Calls the function with the rows of one queue's run."""

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[Any]:
        """Call with the rows first .. end - 1; yield the results in the order of the rows."""


class _PerKey:
    """A `QueueCaller` that makes one call per key of the run."""

    def __init__(self, invocation: StageInvocation, by: list[str]) -> None:
        self._invocation = invocation
        self._by = by

    def call_queue(
        self, rows: Any, queue: MessageQueue, offsets: memoryview, first: int, end: int
    ) -> Iterator[Any]:
        # The run was checked; grouping within it keeps the order of each key's rows.
        grouped = grouped_by_key(rows.slice(first, end - first), self._by)
        for run in KeyRuns(self._by, MAX_ROWS_OF_A_KEY, OrderCheck("")).of([grouped]):
            yield from self._invocation.call_key(run)
        yield from self._invocation.rest()


def run_queues(
    spec: StageSpec, batches: Iterator[Any], by: list[str], max_in_flight: int, concurrent_by: str
) -> Iterator[Any]:
    """Run a stage without shuffle: check the run of each queue, then call with it."""
    invocation = StageInvocation(spec, by_key=bool(by))
    check, collector = OrderCheck(spec.remedy), BatchCollector()
    concurrent = None
    if max_in_flight > 1:
        concurrent = ConcurrentKeys(invocation, concurrent_by, max_in_flight)
    caller: QueueCaller = _PerKey(invocation, by) if by else concurrent or invocation
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            origins = RowOrigins(batch)
            for queue, first, end in check.runs(origins, 0, batch.num_rows):
                for made in caller.call_queue(batch, queue, origins.offsets, first, end):
                    yield from collector.add(made)
        yield from collector.rest()
    # Spark closes the generator when it has enough rows; the threads must not outlive the task.
    finally:
        if concurrent is not None:
            concurrent.close()


def run_keys(
    spec: StageSpec, batches: Iterator[Any], keys: list[str], by_key: bool, is_checked: bool
) -> Iterator[Any]:
    """Run a stage over rows sorted by key: a call per key, or for several whole keys."""
    invocation, collector = StageInvocation(spec, by_key), BatchCollector()
    check = OrderCheck(spec.remedy) if is_checked else None
    # A run goes on over record batches: Spark cuts these anywhere, also within a key.
    runs = KeyRuns(keys, MAX_ROWS_OF_A_KEY, check).of(batches)
    if not by_key:
        runs = _joined(runs)
    for run in runs:
        for made in invocation.call_key(run):
            yield from collector.add(made)
    for made in invocation.rest():
        yield from collector.add(made)
    yield from collector.rest()


def _joined(runs: Iterator[KeyRun]) -> Iterator[KeyRun]:
    """Join whole runs of several keys."""
    # A call has a price of its own, mostly the conversion to pandas. Small keys share it so.
    collector = BatchCollector()
    for run in runs:
        for rows in collector.add(run.rows):
            yield KeyRun(None, rows, None, False)
    for rows in collector.rest():
        yield KeyRun(None, rows, None, False)


def run_group(
    spec: StageSpec, table: Any, keys: list[str], order_by: list[str], is_checked: bool
) -> Any:
    """Run a stage over one key's rows of a micro-batch, which Spark gives in any order."""
    invocation = StageInvocation(spec)
    sorted_rows = table.sort_by([(name, "ascending") for name in order_by]).combine_chunks()
    check = OrderCheck(spec.remedy) if is_checked else None
    found: list[Any] = []
    # The group is in memory already, so its run is not cut into parts.
    for run in KeyRuns(keys, max(table.num_rows, 1), check).of(sorted_rows.to_batches()):
        found += invocation.call_key(run)
    return pa.Table.from_batches(found, schema=spec.output.schema)
