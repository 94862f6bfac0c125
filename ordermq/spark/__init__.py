"""The Spark bridge: topics of RocketMQ as ordered DataFrames (extra `spark`).

    orders = spark.readStream.format("ordermq").options(name_servers="...", topic="...").load()

| question | file |
|---|---|
| Which options are there, and how are they checked? | options.py |
| Which columns does the source have? | schema.py |
| Which Arrow types has what a Python function gives back? | arrow_schemas.py |
| How does a process talk to brokers? Which task does it run? | session.py |
| What do Spark's garbage collections leave out? | frozen_imports.py |
| What does Spark show of an error? | shown_errors.py |
| Which version of Spark can do what? | versions.py |
| Which packages must a Python of Spark have? | packages.py |
| How is the order of rows checked? | row_order.py |
| How does a batch, or a micro-batch, get its offsets? | source/offsets.py |
| How does a group learn where a query began? | source/group_starts.py |
| Where do the queues of a running stream end? | source/latest_offsets.py |
| Is each of them still the queue that was read? | source/queue_lives.py |
| Which queues of a checkpoint are gone, or not selected any more? | source/checkpoint_queues.py |
| Which queues does a task read? | source/task_ranges.py, source/read_task.py |
| How does a task read its rows? | source/queue_reader.py, source/row_blocks.py |
| When does Spark call what of a batch read, or of a stream? | source/batch.py, source/stream.py |
| What does a batch read skip by a query's filter? | source/pushdown.py |
| Which reader do the options and this version of Spark get? | source/readers.py |
| Who limits a micro-batch? | source/admission_stream.py, source/self_limited_stream.py |
| What does the driver of a stream do: offsets, commits, locks? | source/stream_driver.py |
| How far is a query behind, and who is told? | source/stream_lag.py, source/lag_listener.py |
| Who holds the queue locks of a running query? | source/driver_locks.py |
| What may a task do after its query has ended? | stages/executor_lease.py |
| Which plan does an ordered stage get? | stages/apply_in_order.py |
| Which rows does a call of the user's function get? | stages/stage_invocation.py |
| How are sorted rows cut by key, and keys processed concurrently? | stages/rows_by_key.py |
| What may the user's function return? | stages/output.py |
| What happens to a row on which the function fails? | stages/failure_policy.py |
| Where is a key's state kept: by Spark? | stages/apply_with_state.py |
| And beside its queue? | stages/apply_with_keyed_state.py |
| How is such a state kept in memory, through a micro-batch, on disk? | stages/keyed_state.py, \
stages/queue_state.py, stages/state_store.py |
| How many queues has a topic, when each key has its state at its own? | stages/queue_counts.py |
| Who may look at stored states from outside? | stages/stored_states.py |
| How does a column function get its rows in order? | stages/ordered_udf.py |
| How are messages written, and who checks their order? | sink/writer.py |
| Which queue does a row go to? How is it encoded? | sink/row_encoder.py |
| How are batches sent and retried? | sink/block_sender.py |
| How is a message found that was written twice? | sink/row_stamps.py, stages/deduplication.py |
| How do all rows of a target queue get into one task? | sink/target_queues.py |
| How does a table of a database become Parquet or Delta? | copied_tables.py |

source, sink and stages import frozen_imports, options, packages, schema, session, row_order,
shown_errors and versions, and not each other. Spark finds the format by the package
`pyspark_ordermq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ordermq.lazy_imports import lazy_names
from ordermq.spark.packages import needed_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ordermq.spark.copied_tables import DeltaCopy, ParquetCopy, TableChanges
    from ordermq.spark.sink.target_queues import by_target_queue
    from ordermq.spark.source.lag_listener import LagListener
    from ordermq.spark.stages.apply_in_order import apply_in_order
    from ordermq.spark.stages.apply_with_keyed_state import apply_with_keyed_state
    from ordermq.spark.stages.apply_with_state import apply_with_state
    from ordermq.spark.stages.deduplication import drop_repeats
    from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey, unpark
    from ordermq.spark.stages.ordered_udf import ordered_udf
    from ordermq.spark.stages.stage_invocation import StageContext
    from ordermq.spark.stages.stored_states import state_statistics, stored_states

__all__ = [
    "DeadLetter",
    "DeltaCopy",
    "LagListener",
    "ParkKey",
    "ParquetCopy",
    "StageContext",
    "TableChanges",
    "apply_in_order",
    "apply_with_keyed_state",
    "apply_with_state",
    "by_target_queue",
    "drop_repeats",
    "ordered_udf",
    "register",
    "state_statistics",
    "stored_states",
    "unpark",
]

# Imported when a name is used: Spark's processes that only plan a read import this package, too,
# and pandas would cost each of them a second.
_HOMES = {
    "copied_tables": ("DeltaCopy", "ParquetCopy", "TableChanges"),
    "sink.target_queues": ("by_target_queue",),
    "source.lag_listener": ("LagListener",),
    "stages.apply_in_order": ("apply_in_order",),
    "stages.apply_with_keyed_state": ("apply_with_keyed_state",),
    "stages.apply_with_state": ("apply_with_state",),
    "stages.deduplication": ("drop_repeats",),
    "stages.failure_policy": ("DeadLetter", "ParkKey", "unpark"),
    "stages.ordered_udf": ("ordered_udf",),
    "stages.stage_invocation": ("StageContext",),
    "stages.stored_states": ("state_statistics", "stored_states"),
}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    _imported, __dir__ = lazy_names(__name__, _HOMES)

    def __getattr__(name: str) -> object:
        try:
            with needed_here():
                return _imported(name)
        except ImportError:
            # Spark 3.5 lacks modules that some of these import: it says so, and not which.
            from ordermq.spark.versions import FORMAT, require

            require(FORMAT)
            raise


def register(spark: SparkSession) -> None:
    """Register the format in a session.

    Needed only where Spark cannot find the package by its name: it searches the folders of
    sys.path, which do not contain an editable install.

    Raises: ConfigError: this Spark has no data sources in Python.
    """
    from ordermq.spark.versions import FORMAT, require

    require(FORMAT)
    from pyspark.errors import AnalysisException

    from pyspark_ordermq import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        # Spark 4.0 refuses a format that it has found by itself. Later ones replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
