"""A standalone Spark cluster of two hosts, which are two loopback addresses.

What Spark does between hosts only, as speculation and fetching blocks, is seen there and not in
`local-cluster`, whose executors share one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.spark.conftest import eventually


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[str]:
    """A master and a worker on each of two loopback addresses; yields the master's URL."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    environment = os.environ | {"SPARK_LOG_DIR": str(folder), "SPARK_WORKER_DIR": str(folder)}
    environment |= {"SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable}
    log = folder / "master.log"
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, to: Path) -> None:
        with to.open("wb") as out:
            command = [str(spark_class), *arguments]
            started.append(
                subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            )

    def address() -> str:
        words = log.read_text().split()
        return next((word for word in words if word.startswith("spark://")), "").rstrip(",.")

    try:
        master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0"]
        start(*master, "--webui-port", "0", to=log)
        eventually(lambda: address(), "the master's address", 120)
        for host in ("127.0.0.1", "127.0.0.2"):
            worker = [f"{deploy}.worker.Worker", "--host", host, "--cores", "1"]
            worker += ["--memory", "700m", "--webui-port", "0", address()]
            start(*worker, to=folder / f"{host}.log")
        joined = "Registering worker"
        eventually(lambda: log.read_text().count(joined) == 2, "both workers", 120)
        yield address()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)
