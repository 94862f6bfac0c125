"""Celery over RocketMQ: a customer's tasks one after the other, customers side by side.

pip install 'ordermq[celery]'
cd examples && celery -A tasks_celery worker      at a name server on port 9876
python examples/tasks_celery.py                   a worker at a broker of its own
"""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery  # type: ignore[import-untyped]
from celery.contrib.testing.worker import start_worker  # type: ignore[import-untyped]

import ordermq.contrib.kombu  # noqa: F401 - it registers ordermq://
from ordermq.broker import EmbeddedBroker

app: Any = Celery("shop", broker="ordermq://127.0.0.1:9876")  # Celery has no types
app.conf.update(
    task_acks_late=True,  # a task is done when it has run: a killed worker loses none
    task_ignore_result=True,
    worker_hijack_root_logger=False,
)
done = threading.Semaphore(0)


@app.task  # type: ignore[untyped-decorator]
def bill(customer: str, number: int) -> None:
    """Bill an order."""
    print(f"{customer}: bill {number}")
    done.release()


def main() -> None:
    """Send three tasks of one customer, and run them."""
    with EmbeddedBroker() as broker:
        app.conf.broker_url = f"ordermq://{broker.name_servers}"
        for number in range(1, 4):
            bill.apply_async(("ann", number), headers={"sharding_key": "ann"})
        worker: Any = start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR")
        with worker:
            for _ in range(3):
                assert done.acquire(timeout=60)


if __name__ == "__main__":
    main()
