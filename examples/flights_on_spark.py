"""Process a year of flights on Spark in order: from a topic through a stage with state to another.

Each message of the topic `flights` is an event of an aircraft; `ordermq demo` sends them and keeps
the data of its broker. The stage keeps the log of every aircraft beside its queue, over
micro-batches, and gets the rows and logs of many aircraft in one call. After each micro-batch it
writes the changed logs to the topic `aircraft-logs`, keyed by aircraft. Kill it at any time:
started again with the same folder, it continues.

    pip install 'ordermq[demo,spark]'
    ordermq demo
    ordermq broker --data demo-output/broker &
    python examples/flights_on_spark.py --folder demo-output/spark

With `--standalone` it starts a Spark master and two workers on the loopback interface and ships
this package to their executors; with `--master` it uses your cluster. It prints one JSON line per
micro-batch, and with `--lag FILE` it writes there how far the query is behind, all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import ordermq
from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.errors import OrderingError
from ordermq.spark import LagListener, apply_with_keyed_state, drop_repeats, register

GROUP = "flights-on-spark"
FLIGHTS, LOGS = "flights", "aircraft-logs"

_TEXTS = ("place", "base")
STATE = ", ".join(
    f"{field.name} {'STRING' if field.name in _TEXTS else 'BIGINT'}"
    for field in fields(AircraftLog)
    if field.name != "key"
)


def keep_logs(
    rows: pa.RecordBatch, states: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Continue the logs of some aircraft; `rows` are their events in the order they were sent."""
    logs: dict[str, AircraftLog] = {}
    for state in states.to_pylist():
        known = {name: value for name, value in state.items() if value is not None}  # none: new
        key = known.pop("sharding_key")
        logs[key] = AircraftLog(key, **known)
    for key, body in zip(
        *(rows[name].to_pylist() for name in ("sharding_key", "body")), strict=True
    ):
        event, log = orjson.loads(body), logs[key]
        if event["nth"] < log.events:
            continue  # sent twice by the producer, whose acknowledgement was lost
        if event["nth"] > log.events:
            raise OrderingError(f"{key}: event {event['nth']} arrived after {log.events} events")
        log.apply(event)
    kept = [asdict(log) for log in logs.values()]
    bodies = [orjson.dumps(log) for log in kept]
    out = pa.RecordBatch.from_pydict({"sharding_key": list(logs), "body": bodies})
    named = [{"sharding_key": log.pop("key"), **log} for log in kept]
    return out, pa.RecordBatch.from_pylist(named, schema=states.schema)


def pipeline(spark: SparkSession, name_servers: str, max_rows: int, states: Path) -> DataFrame:
    """Return the logs that each micro-batch changed; all are kept in the folder `states`."""
    flights = (
        spark.readStream.format("ordermq")
        .option("name_servers", name_servers)
        .option("topic", FLIGHTS)
        .option("group", GROUP)  # members hold queue locks: one owner per queue
        .option("starting_offsets", "earliest")
        .option("max_rows", max_rows)
        .option("columns", "topic,broker,queue_id,offset,sharding_key,body")
        .load()
    )
    return apply_with_keyed_state(
        flights,
        keep_logs,
        "sharding_key STRING, body BINARY",
        STATE,
        directory=str(states.absolute()),
        engine="arrow",
    )


def run(
    spark: SparkSession,
    name_servers: str,
    folder: Path,
    max_rows: int,
    logs: str = LOGS,
    lag_file: Path | None = None,
) -> None:
    """Process all messages of the topic; print a line per micro-batch.

    Raises: StreamingQueryException: the query failed.
    """
    with listening(spark, name_servers) as listener:
        query = (
            pipeline(spark, name_servers, max_rows, folder / "states")
            .writeStream.format("ordermq")
            .option("name_servers", name_servers)
            .option("topic", logs)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        printed = -1
        is_over = False
        while not is_over:
            is_over = query.awaitTermination(0.2)  # pyright: ignore[reportArgumentType]
            if lag_file is not None:
                write_lag(listener, lag_file)
            for progress in query.recentProgress:
                if progress["batchId"] > printed and progress["numInputRows"]:
                    printed = progress["batchId"]
                    print(json.dumps(line_of(progress)), flush=True)


@contextlib.contextmanager
def listening(spark: SparkSession, name_servers: str) -> Iterator[LagListener]:
    """Measure and log how far the session's queries are behind."""
    listener = LagListener(name_servers=name_servers)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def write_lag(listener: LagListener, path: Path) -> None:
    """Append how far the query is behind now: messages, and the age of the oldest in seconds."""
    with path.open("a") as lines:
        for report in listener.report():
            print(json.dumps({"t": time.time(), **report["lag"]}), file=lines)


def line_of(progress: Any) -> dict[str, Any]:
    """Return a micro-batch as a line: rows, rows per second, and the lag after it."""
    (source,) = progress["sources"]
    end = json.loads(source["endOffset"])
    # After a restart Spark runs the last micro-batch again before it asks for the latest offsets.
    latest = json.loads(source["latestOffset"] or "null")
    return {
        "t": time.time(),
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "rows_per_second": progress["processedRowsPerSecond"],
        "read": sum(offset for name, offset in end.items() if ":" in name),
        "lag": latest
        and sum(max(latest[name] - end.get(name, 0), 0) for name in latest if ":" in name),
    }


def read_back(spark: SparkSession, name_servers: str, path: Path, logs: str = LOGS) -> None:
    """Write the logs of the topic, each once and in order, to a Parquet file."""
    written = (
        spark.read.format("ordermq")
        .option("name_servers", name_servers)
        .option("topic", logs)
        .load()
    )
    rows = drop_repeats(written).select("sharding_key", "queue_id", "offset", "body").toPandas()
    rows.sort_values(["queue_id", "offset"], ignore_index=True).to_parquet(path)


def session(master: str, folder: Path, **settings: str) -> SparkSession:
    """Return a Spark session."""
    builder = (
        SparkSession.builder.master(master)
        .appName("flights-on-spark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers on the loopback interface; yield the master's URL."""
    import pyspark

    home = Path(pyspark.__file__).parent
    where = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    spark_class = [str(home / "bin" / "spark-class")]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, *arguments: object) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            command = [*spark_class, f"org.apache.spark.deploy.{kind}", *map(str, arguments)]
            started.append(
                subprocess.Popen(command, env=os.environ | where, stdout=log, stderr=log)
            )

    port, page = _free_port(), _free_port()
    url = f"spark://127.0.0.1:{port}"
    try:
        start("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port",
              page)  # fmt: skip
        for number in (1, 2):
            work = folder / f"worker-{number}"
            start(f"worker-{number}", "worker.Worker", "--host", f"127.0.0.{number}", "--cores", 1,
                  "--memory", "1g", "--webui-port", 0, "--work-dir", work, url)  # fmt: skip
        _wait_for_workers(page, 2)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)


def _free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_for_workers(page: int, count: int, deadline_s: float = 180.0) -> None:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer,
        ):
            if json.load(answer)["aliveworkers"] >= count:
                return
        time.sleep(0.2)
    raise SystemExit(f"no {count} workers within {deadline_s:.0f} s: see master.log, worker-*.log")


def package_archive(folder: Path) -> Path:
    """Write this package as an archive for executors, as docs/spark.md describes."""
    path = folder / "ordermq.tar.gz"
    source = Path(ordermq.__file__).parent
    with tarfile.open(path, "w:gz") as archive:
        for package in (source, source.parent / "pyspark_ordermq"):
            archive.add(package, package.name, filter=lambda entry: (
                None if "__pycache__" in entry.name else entry
            ))  # fmt: skip
    return path


def archive_settings(folder: Path) -> dict[str, str]:
    """Return the settings that make executors unpack the archive and import from it."""
    return {
        "spark.archives": f"{package_archive(folder)}#ordermq_package",
        "spark.executorEnv.PYTHONPATH": "./ordermq_package",
        "spark.executor.memory": "1g",
    }


def imported_from(spark: SparkSession) -> set[str]:
    """Return the paths from which executors import the package."""

    def file_of(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import ordermq

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [ordermq.__file__]})

    rows = spark.range(0, 4, numPartitions=4).mapInArrow(file_of, "file STRING").collect()
    return {row.file for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Process flights on Spark in order.")
    parser.add_argument("--name-servers", default="127.0.0.1:9876")
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder for checkpoint, states and logs"
    )
    parser.add_argument("--max-rows", type=int, default=30_000, help="maximum rows per micro-batch")
    parser.add_argument("--logs", default=LOGS, help="topic to write the logs to")
    parser.add_argument("--lag", type=Path, help="file for JSON lines about the lag")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--standalone", action="store_true", help="start a cluster of two workers")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with contextlib.ExitStack() as opened:
        settings: dict[str, str] = {}
        master = asked.master
        if asked.standalone:
            master = opened.enter_context(standalone_cluster(asked.folder))
            where = opened.enter_context(tempfile.TemporaryDirectory())
            settings = archive_settings(Path(where))
        spark = session(master, asked.folder, **settings)
        opened.callback(spark.stop)
        if asked.standalone:
            print(json.dumps({"executors_import": sorted(imported_from(spark))}), flush=True)
        run(spark, asked.name_servers, asked.folder, asked.max_rows, asked.logs, asked.lag)
        read_back(spark, asked.name_servers, asked.folder / "logs.parquet", asked.logs)


if __name__ == "__main__":
    main()
