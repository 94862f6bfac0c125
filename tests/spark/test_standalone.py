"""The flights example on a standalone cluster that it starts, ships to and ends itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from ordermq import Message, Producer, json_text
from ordermq.cli.demo.aircraft_log import AircraftLog
from ordermq.cli.demo.expected import differences, expected_logs
from ordermq.cli.demo.flights import flights_file, read_flights
from tests.spark.conftest import ROOT, Broker

FLIGHTS = 2_000
PROGRAM = ROOT / "examples" / "flights_on_spark.py"


def send_flights(broker: Broker) -> None:
    """As the demo's producer does, without its pace."""
    events = (
        (Message("flights", json_text.dumps(flight._asdict())), flight.key)
        for flight in read_flights(flights_file(), FLIGHTS)
    )
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=4) as producer:
        assert len(producer.send_many(events)) == FLIGHTS


def run_example(broker: Broker, folder: Path) -> list[dict[str, Any]]:
    """Run it on a cluster of its own; its lines."""
    with (folder.parent / "example.log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "--standalone", "--name-servers", broker.name_servers,
             "--folder", str(folder), "--max-rows", "1200"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=500,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, Path(log.name).read_text()[-3_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def processes_of(folder: Path) -> list[str]:
    """Command lines of what still runs and has to do with a folder: its workers, its executors."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            at = os.readlink(path / "cwd")
        except OSError:  # it has just ended
            continue
        if str(folder) in command or at.startswith(str(folder)):
            found.append(command)
    return found


def test_the_flights_on_a_standalone_cluster_equal_pandas_and_no_process_is_left(
    broker: Broker, tmp_path: Path
) -> None:
    send_flights(broker)
    folder = tmp_path / "cluster"
    imports, *batches = run_example(broker, folder)
    # Not from this checkout: from what was shipped, in a folder of each worker's.
    packages = [Path(path) for path in imports["executors_import"]]
    assert {path.relative_to(folder).parts[0] for path in packages} == {"worker-1", "worker-2"}
    assert all("ordermq_package" in path.parts for path in packages)
    assert sum(line["rows"] for line in batches) == FLIGHTS
    assert len(batches) > 1
    assert batches[-1]["lag"] == 0
    logs = [AircraftLog(**json_text.loads(body)) for body in
            pd.read_parquet(folder / "logs.parquet")["body"]]  # fmt: skip
    last = {log.key: log for log in logs}  # each aircraft's come in order
    assert differences(expected_logs(flights_file(), FLIGHTS), list(last.values())) == []
    assert processes_of(folder) == []
