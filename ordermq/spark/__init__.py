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

Spark finds the format by the package `pyspark_ordermq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format known to a session.

    Needed only where the package cannot be found by its name: Spark looks for packages in the
    folders of sys.path, which an editable install is not in.
    """
    from pyspark_ordermq import DefaultSource

    spark.dataSource.register(DefaultSource)
