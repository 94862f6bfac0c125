"""Programs that tests.interop.lives runs: each writes the bodies that it was given to a file.

    ordermq run tests.interop.life_programs:consumer
    python -m tests.interop.life_programs

The second is a Spark query. The environment says what they read and where they write: LIFE_SERVERS,
LIFE_GROUP, LIFE_TOPIC, LIFE_FOLDER.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ordermq import PushConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BODIES = "bodies"  # a file of the folder, to which every process of a program appends


def write(bodies: Iterable[bytes]) -> None:
    """Append bodies to the file, a line each, in one write."""
    lines = b"".join(b"%s\n" % body for body in bodies)
    file = os.open(_folder() / BODIES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, lines)
    finally:
        os.close(file)


def consumer() -> PushConsumer:
    """Make the consumer for `ordermq run`."""
    made = PushConsumer(
        os.environ["LIFE_GROUP"],
        name_servers=os.environ["LIFE_SERVERS"],
        consume_from_where="first_offset",
        commit_interval_ms=1_000,
        route_interval_ms=300,
    )
    made.subscribe(os.environ["LIFE_TOPIC"])

    def listen(messages: Sequence[Any], context: object) -> None:
        write(bytes(message.body) for message in messages)

    made.orderly(listen)
    return made


def main() -> None:
    """Read the topic with Spark until the process is killed or its query fails.

    Raises: StreamingQueryException: as the query.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of its workers
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A busy machine takes longer than 15 s to start a Python process.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.format("ordermq")
        .options(name_servers=os.environ["LIFE_SERVERS"], topic=os.environ["LIFE_TOPIC"])
        .options(group=os.environ["LIFE_GROUP"], starting_offsets="earliest", columns="body")
        .options(fail_on_data_loss="false", route_interval_ms="300")
        .load()
    )

    def take(batch: DataFrame, number: int) -> None:
        write(bytes(row.body) for row in batch.collect())

    query = (
        rows.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(_folder() / "checkpoint"))
        .start()
    )
    query.awaitTermination()


def _folder() -> Path:
    return Path(os.environ["LIFE_FOLDER"])


if __name__ == "__main__":
    main()
