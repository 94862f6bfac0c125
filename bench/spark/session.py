"""The Spark session of the benchmarks."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from bench.machine import ROOT, compile_package


def session(memory: str = "2g", jars: str = "") -> SparkSession:
    """Return a session with two local cores.

    Args:
        memory: of the JVM.
        jars: files to add to the JVM's class path, joined by commas.
    """
    compile_package()  # Spark starts processes of Python for each stream and for many a read
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("ordermq-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.jars", jars)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made
