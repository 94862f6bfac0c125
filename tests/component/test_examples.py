"""The programs of the folder examples run as they stand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq import Admin, Message, Producer, TransactionState
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import eventually
from tests.waiting import killed_on_error

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PRINTED = {
    "asyncio_exactly_once.py": "booked 1275 cents of 1275, 1 call failed, 1 message was no order\n",
    "readings_in_pandas.py": "<TopicState readings: 300 messages in 4 queues, groups: none>\n"
    "        count   mean\nsensor              \ns-0       100  22.97\ns-1       100  22.99\n"
    "s-2       100  23.01\nTrue\n",
    "first_steps.py": "o-17 placed\no-17 paid\no-17 shipped\n",
    "from_kafka.py": "queues of each member: 2 2\naudited: 1000\nbooked: 499500\n",
    "from_java.py": "order 0 COMMIT\norder 1 ROLLBACK\norder 2 UNKNOWN\n"
    "billed: 0 at attempt 2, 2 at attempt 1\ntraces dropped: 0\ntopics: orders\n"
    "traces written: True\n",
    "two_processes.py": "owners of the 8 queues: 2\nowners of the 8 queues: 1\n"
    "16 keys, each in order, nothing twice: True\n",
    "metrics_page.py": "messaging_client_consumed_messages_total{"
    'messaging_consumer_group_name="billing",messaging_destination_name="orders",'
    'messaging_destination_partition_id="embedded/0",messaging_operation_name="process",'
    'messaging_system="rocketmq"} 100.0\n',
    "consume_and_produce.py": "ann: 210 cents in 20\nbob: 203 cents in 20\n",
    "dead_letters.py": "given up: ['malformed']\nsent again: 1\n"
    "billed: placed paid shipped malformed\n",
    "replay_by_time.py": "today 0\ntoday 1\ntoday 2\n",
    "parked_key.py": "asked 4 times; ann: ['placed'], bob: ['placed', 'paid', 'shipped']\n"
    "parked: poison shipped\nann: placed poison shipped\n",
    "java_listeners.py": "queues used: 8\n"
    "billed 80 of 80; ['o-7 paid', 'o-7 shipped'], the first at attempt 4\n"
    "large orders: 37 38 39\ndead letter: bob ['bob']\nsent again: 1\nmails: ann bob\n",
    "delays_and_replies.py": "delayed: at a time, by level, by span; early: False\n"
    "tea: 12.50\nplaces of the batch: 0 1 2\n"
    "broadcast: a=['0', '1', '2'] b=['0', '1', '2']\n",
    "frames_of_a_topic.py": "rows on the first day: 1500\n"
    "no reading: b'not JSON', offset 450\non the second: 500\n"
    "the frame that was sent: 10 True\n",
    "killed_service.py": "killed with -9\nkilled with -9\n100 balances are exact: True\n",
    "key_lanes.py": "20 keys of one queue, each in order: True\n",
    "orders_faststream.py": "bill 1: 120 cents\nbill 2: 240 cents\nbill 3: 360 cents\n",
    "tasks_celery.py": "ann: bill 1\nann: bill 2\nann: bill 3\n",
    "outbox.py": "o-17 COMMIT\no-18 COMMIT\no-17 ROLLBACK\nconsumers see: o-17 o-18\n",
}
ELSEWHERE = {
    "copy_table.py": "tests/component/test_cdc_postgresql.py",
    "exactly_once.py": "tests/component/test_exactly_once.py",
    "flights_on_spark.py": "tests/spark",
    "keyed_state_on_spark.py": "tests/spark",
    "orders_service.py": "tests/component/test_orders_service.py",
    "pandas_udf_on_spark.py": "tests/spark",
    "run_processes.py": "below",
    "test_billing.py": "below",
    "write_once.py": "tests/component/test_fence_tokens.py",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=100, check=False
    )


def test_every_example_is_run_by_some_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == PRINTED.keys() | ELSEWHERE.keys()


def test_every_example_is_on_the_page_of_first_steps() -> None:
    page = (EXAMPLES.parent / "docs" / "getting-started.md").read_text()
    programs = [path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    missing = [each.name for each in programs if f"../examples/{each.name})" not in page]
    assert missing == []


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(name: str) -> None:
    done = run(str(EXAMPLES / name))
    assert (done.returncode, done.stdout) == (0, PRINTED[name]), done.stderr


def test_the_outbox_answers_for_a_transaction_and_not_for_its_order(tmp_path: Path) -> None:
    """Neither for an order that another one has placed, nor for one that may still be placed."""
    outbox = runpy.run_path(str(EXAMPLES / "outbox.py"))
    orders = outbox["Orders"](tmp_path / "shop.db")
    placed = Message("orders", b"o-17")
    placed.transaction_id = "A" * 32
    assert orders.execute(placed, "o-17") is TransactionState.COMMIT

    def answer(transaction_id: str, age_ms: int) -> TransactionState:
        born_ms = time.time_ns() // 1_000_000 - age_ms
        stored = SimpleNamespace(message_id=transaction_id, born_timestamp_ms=born_ms, body=b"o-17")
        state: TransactionState = orders.check(stored)
        return state

    assert answer("A" * 32, 0) is TransactionState.COMMIT
    assert answer("B" * 32, 0) is TransactionState.UNKNOWN
    assert answer("B" * 32, 3_600_000) is TransactionState.ROLLBACK


def test_a_receipt_whose_send_fails_is_sent_when_its_payment_comes_again() -> None:
    example = runpy.run_path(str(EXAMPLES / "consume_and_produce.py"))
    payment, sent = example["Payment"]("ann", 1, 7), []

    class Batch(contextlib.suppress):
        """A batch of the payment, which swallows an exception as a consumer's does."""

        def __init__(self) -> None:
            super().__init__(ConnectionError)

        def __iter__(self) -> Iterator[Any]:
            yield SimpleNamespace(value=lambda: payment)

    class Till:
        """A producer whose first send fails."""

        def message(self, topic: str, value: object) -> object:
            return value

        async def send(self, receipt: object, *, sharding_key: str) -> None:
            sent.append(receipt)
            if len(sent) == 1:
                raise ConnectionError("a test's own failure")

    async def batches() -> AsyncIterator[Batch]:
        for _ in range(3):
            yield Batch()

    asyncio.run(example["transform"](batches(), Till()))
    assert sent == [example["Receipt"]("ann", 1, 7)] * 2, "again after the failure, and then not"


def test_the_cells_of_the_notebook_run_one_after_the_other(tmp_path: Path) -> None:
    """Without Jupyter, whose kernel runs them as well; what a cell shows is printed."""
    cells = json.loads((EXAMPLES / "readings.ipynb").read_text())["cells"]
    code = "\n".join("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    (tmp_path / "cells.py").write_text(
        code.replace("\ntopic\n", "\nprint(topic)\n").replace(
            "\nreadings.groupby", "\nprint(len(frames) >= 6)\nreadings.groupby"
        )
    )
    done = subprocess.run(
        [sys.executable, "cells.py"],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    printed = "<TopicState readings: 3000 messages in 4 queues, groups: none>\nTrue\n"
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    assert (tmp_path / "readings.png").stat().st_size > 10_000


def test_the_notebook_is_kept_without_what_its_cells_showed() -> None:
    cells = json.loads((EXAMPLES / "readings.ipynb").read_text())["cells"]
    code = [each for each in cells if each["cell_type"] == "code"]
    assert [each for each in code if each["outputs"] or each["execution_count"]] == []


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    file = str(EXAMPLES / "test_billing.py")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", file)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_example_of_several_processes_bills_in_each(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", 8)
    command = [sys.executable, "-m", "ordermq", "run", "run_processes:consumer", "--processes", "2"]
    environment = {**os.environ, "ORDERMQ_NAME_SERVERS": broker.name_servers}
    supervisor = subprocess.Popen(
        command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True
    )
    with killed_on_error(supervisor) as running:
        assert running.stdout is not None
        with Admin(name_servers=broker.name_servers) as admin:

            def owners() -> set[str]:
                holdings = admin.group("billing", ["orders"]).holdings.values()
                return {owner for owner, _ in holdings}

            eventually(lambda: len(owners()) == 2, "both processes have queues", 60)
        for number in range(40):
            producer.send(Message("orders", b"paid"), sharding_key=f"o-{number}")
        billed: set[str] = set()
        # Each line is "[1] process 123 bills o-7 paid"; the test's time-out bounds the wait.
        while len(billed) < 40 and (line := running.stdout.readline()):
            billed |= set(re.findall(r"bills (o-\d+) paid", line))
        running.send_signal(signal.SIGTERM)
        running.stdout.read()
    assert (running.returncode, len(billed)) == (0, 40)
