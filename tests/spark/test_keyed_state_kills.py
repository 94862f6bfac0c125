"""A keyed state whose driver is killed twice, and a worker once, in mid-batch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ordermq import Message, Producer
from ordermq.spark import state_statistics, stored_states
from tests.spark.conftest import ROOT, Broker, eventually
from tests.spark.keyed_state_process import HELD, OUT, ROWS

MESSAGES = 9 * ROWS
KEYS = 400


def sent(broker: Broker) -> pd.DataFrame:
    """Send numbers of Zipf's keys; (key, number) as they were sent."""
    random = np.random.default_rng(19)
    weights = 1 / np.arange(1, KEYS + 1)
    keys = random.choice(KEYS, MESSAGES, p=weights / weights.sum())
    rows = pd.DataFrame({"key": [f"k{key}" for key in keys], "number": range(MESSAGES)})
    events = (
        (Message("orders", b"%d" % number), key) for key, number in rows.itertuples(index=False)
    )
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=4) as producer:
        assert len(producer.send_many(events)) == MESSAGES
    return rows


class Program:
    """The driver program, with its JVM in a process group of its own."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._log = folder / "program.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("keyed_state_process.py")),
                 broker.name_servers, str(folder), "local[2,4]"],
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def held(self, marker: Path) -> int:
        """Wait until its function waits in a batch; the worker's process id."""

        def is_held() -> bool:
            assert self._process.poll() is None, self._log.read_text()[-3_000:]
            return marker.exists()

        eventually(is_held, f"the function waits: {marker.name}", 240)
        return int(marker.read_text())

    def kill(self) -> None:
        """Kill the driver with its JVM. Its workers find out by themselves."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def wait(self) -> None:
        assert self._process.wait(300) == 0, self._log.read_text()[-3_000:]


def test_states_are_exact_after_two_kills_of_the_driver_and_one_of_a_worker(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    rows = sent(broker)
    program = Program(broker, tmp_path)
    try:
        for batch in HELD:
            worker = program.held(tmp_path / f"held-{batch}")
            # One queue of the task is stored already, as this batch's.
            stored = [path.name for path in (tmp_path / "states").glob(f"*/*/*/{batch:012d}.*")]
            assert stored
            if batch == HELD[-1]:
                os.kill(worker, signal.SIGKILL)
            else:
                program.kill()
            (tmp_path / f"passed-{batch}").touch()
            if batch != HELD[-1]:
                program = Program(broker, tmp_path)
        program.wait()
    finally:
        program.kill()
    written = spark.read.schema(OUT).json(str(tmp_path / "rows")).toPandas()
    written = written.sort_values(["queue_id", "offset"])
    for key, own in rows.groupby("key")["number"]:
        assert written[written["key"] == key]["total"].tolist() == own.cumsum().tolist()
    assert len(written) == MESSAGES
    states = stored_states(str(tmp_path / "states")).to_pandas()
    wanted = rows.groupby("key")["number"].sum()
    assert states.set_index("sharding_key")["total"].sort_index().to_dict() == wanted.to_dict()
    assert sum(one["keys"] for one in state_statistics(str(tmp_path / "states"))) == len(wanted)
