"""The Spark bridge: RocketMQ's queues as a source of DataFrames, in order (extra `spark`).

    orders = spark.readStream.format("ordermq").options(name_servers="...", topic="...").load()

| file | what is in it |
|---|---|
| options.py, settings.py | every option, read and checked at once |
| schema.py | the columns, for Arrow and for Spark |
| source.py | the batch source: a snapshot, a partition a queue |
| stream.py, stream_driver.py, tails.py | the stream: Spark's calls; a run; where its queues end |
| driver_lease.py | a run holds its queues |
| queue_reader.py | reading a queue's range on an executor, as Arrow |
| offsets.py, positions.py | where to read: pure functions; what the brokers are asked |
| link.py | the client of a process |
| lease_identity.py | who holds a running query's queues: source and stages agree on it here |
| ordered_stage.py | apply_in_order: which plan; ordered_*.py: rows, calls, keys, lanes, failures |
| ordered_state.py, ordered_columns.py | stages that remember; column functions in order |
| executor_lease.py | the fence before user code |
| sink.py | the sink; sink_*.py: options, rows to batch bodies, stamps, sending, its shuffle |
| repeats.py | messages written twice, read once |

Spark finds the format by the package `pyspark_ordermq`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ordermq.spark.sink.target_queues import by_target_queue
    from ordermq.spark.stages.apply_in_order import apply_in_order
    from ordermq.spark.stages.apply_with_state import apply_with_state
    from ordermq.spark.stages.deduplication import drop_repeats
    from ordermq.spark.stages.failure_policy import DeadLetter, ParkKey, unpark
    from ordermq.spark.stages.ordered_udf import ordered_udf
    from ordermq.spark.stages.stage_invocation import StageContext

__all__ = [
    "DeadLetter",
    "ParkKey",
    "StageContext",
    "apply_in_order",
    "apply_with_state",
    "by_target_queue",
    "drop_repeats",
    "ordered_udf",
    "register",
    "unpark",
]

# Where each name is, imported when it is asked for: Spark's processes that only plan a read
# import this package too, and pandas would cost each of them a second.
_HOMES = {
    "DeadLetter": "stages.failure_policy",
    "ParkKey": "stages.failure_policy",
    "StageContext": "stages.stage_invocation",
    "apply_in_order": "stages.apply_in_order",
    "apply_with_state": "stages.apply_with_state",
    "by_target_queue": "sink.target_queues",
    "drop_repeats": "stages.deduplication",
    "ordered_udf": "stages.ordered_udf",
    "unpark": "stages.failure_policy",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def register(spark: SparkSession) -> None:
    """Make the format known to a session.

    Needed only where the package cannot be found by its name: Spark looks for packages in the
    folders of sys.path, which an editable install is not in.
    """
    from pyspark_ordermq import DefaultSource

    spark.dataSource.register(DefaultSource)
