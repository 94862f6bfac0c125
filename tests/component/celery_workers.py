"""Celery's workers as processes, killed in the middle of their tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.component import celery_tasks
from tests.component.conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
CELERY = (sys.executable, "-m", "celery", "-A", "tests.component.celery_tasks")
TASKS, KEYS = 90, 7


def environment_of(name_servers: str, folder: Path) -> dict[str, str]:
    """Return the environment of workers that note in `folder` what they did."""
    (folder / "ran").touch()
    return {
        **os.environ,
        "TASKS_BROKER": f"ordermq://{name_servers}",
        "TASKS_FILE": str(folder / "ran"),
        "TASKS_LOG": str(folder / "log"),
    }


def ran(environment: dict[str, str]) -> list[str]:
    return Path(environment["TASKS_FILE"]).read_text().splitlines()


@contextmanager
def worker(environment: dict[str, str], name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Two processes of a pool and their parent, in a group that can be killed."""
    command = [*CELERY, "worker", "-c", "2", "-n", name, "--without-gossip", "--without-mingle"]
    with open(environment["TASKS_LOG"], "ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def send(environment: dict[str, str], sender: Any) -> None:
    with celery_tasks.app.connection(environment["TASKS_BROKER"]) as connection:
        sender(connection)


def kill_in_the_middle(environment: dict[str, str]) -> None:
    """Kill two workers one after the other: no task is lost, and the order of keys is kept."""

    def send_all(connection: Any) -> None:
        for number in range(TASKS):
            key = number % KEYS
            celery_tasks.bill.apply_async(
                (number, key), headers={"sharding_key": str(key)}, connection=connection
            )

    send(environment, send_all)
    for count in TASKS // 3, 2 * TASKS // 3:
        with worker(environment, f"killed-{count}@here") as process:
            eventually(lambda n=count: len(set(ran(environment))) >= n, f"{count} tasks have run")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with worker(environment, "last@here") as process:
        eventually(lambda: len(set(ran(environment))) == TASKS, "every task has run")
        process.terminate()
        assert process.wait(60) == 0
    for key in range(KEYS):
        # Each key's tasks as they first ran: a killed worker's last ones have run twice.
        first = list(dict.fromkeys(line for line in ran(environment) if line.startswith(f"{key} ")))
        assert first == [f"{key} {number}" for number in range(key, TASKS, KEYS)]
