"""Celery's workers as processes on an embedded broker: killed, asked, and shut down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from tests.component import celery_tasks
from tests.component.conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
CELERY = (sys.executable, "-m", "celery", "-A", "tests.component.celery_tasks")
TASKS, KEYS = 90, 7
CALL = "from tests.component.celery_tasks import add; print(add.delay(2, 3).get(timeout=60))"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    config = BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=celery_tasks.LEASE_MS)
    (tmp_path / "ran").touch()
    with EmbeddedBroker(config=config) as broker:
        yield {
            **os.environ,
            "TASKS_BROKER": f"ordermq://{broker.name_servers}",
            "TASKS_FILE": str(tmp_path / "ran"),
            "TASKS_LOG": str(tmp_path / "log"),
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


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def send(environment: dict[str, str], sender: Any) -> None:
    with celery_tasks.app.connection(environment["TASKS_BROKER"]) as connection:
        sender(connection)


def test_workers_that_are_killed_lose_no_task_and_keep_the_order_of_keys(
    environment: dict[str, str],
) -> None:
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


def test_a_worker_retries_by_timed_messages_answers_its_callers_and_ends_warm(
    environment: dict[str, str],
) -> None:
    with worker(environment, "asked@here") as process:
        send(environment, lambda connection: celery_tasks.flaky.apply_async(connection=connection))
        eventually(lambda: ran(environment) == ["flaky 0", "flaky 1"], "the task is retried")
        asked = run(environment, *CELERY, "inspect", "ping", "-t", "20", "-d", "asked@here")
        assert (asked.returncode, "asked@here: OK" in asked.stdout) == (0, True), asked.stderr
        called = run(environment, sys.executable, "-c", CALL)
        assert (called.returncode, called.stdout, called.stderr) == (0, "5\n", "")
        process.terminate()
        assert process.wait(60) == 0
