"""Tasks of test_celery.py, for its workers: each notes in a file that it has run."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import ordermq.contrib.kombu  # noqa: F401 - it registers ordermq://

LEASE_MS = 3_000
BROKER = os.environ.get("TASKS_BROKER", "ordermq://127.0.0.1:1")
app = Celery("tasks", broker=BROKER, backend="rpc://")
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "queues": 4,
        "consumer": {
            "lock_max_live_ms": LEASE_MS,
            "lock_interval_ms": 500,
            "suspend_current_queue_time_ms": 10,
        },
    },
)


def _note(text: str) -> None:
    with open(os.environ["TASKS_FILE"], "a") as file:
        file.write(f"{text}\n")


@app.task(ignore_result=True)  # type: ignore[untyped-decorator]
def bill(number: int, key: int) -> None:
    """Work for a moment, then note it."""
    time.sleep(0.02)
    _note(f"{key} {number}")


@app.task(bind=True, max_retries=2, ignore_result=True)  # type: ignore[untyped-decorator]
def flaky(self: Any) -> None:
    """Fail at first, and come again by a timed message."""
    _note(f"flaky {self.request.retries}")
    if self.request.retries < 1:
        raise self.retry(countdown=0.5)


@app.task  # type: ignore[untyped-decorator]
def add(one: int, other: int) -> int:
    """Return a result to its caller."""
    return one + other
