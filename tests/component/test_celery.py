"""Celery's workers as processes on an embedded broker: killed, asked, and shut down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from tests.component import celery_tasks
from tests.component.celery_workers import (
    CELERY,
    ROOT,
    environment_of,
    kill_in_the_middle,
    ran,
    send,
    worker,
)
from tests.component.conftest import eventually

CALL = "from tests.component.celery_tasks import add; print(add.delay(2, 3).get(timeout=60))"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    config = BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=celery_tasks.LEASE_MS)
    with EmbeddedBroker(config=config) as broker:
        yield environment_of(broker.name_servers, tmp_path)


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_workers_that_are_killed_lose_no_task_and_keep_the_order_of_keys(
    environment: dict[str, str],
) -> None:
    kill_in_the_middle(environment)


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
