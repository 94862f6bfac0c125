"""The examples of docs/pull.md run as they stand, and so does the one the interface was made of."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ordermq import Message, Producer, PullConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.docs_examples import DOCS, examples, run_example

# The page the interface was agreed on has it so; only the address is filled in.
AGREED = """
from ordermq import LitePullConsumer

with LitePullConsumer("audit", name_servers="...") as consumer:
    consumer.subscribe("orders")             # or consumer.assign([queue, ...])
    for batch in consumer.batches(timeout_ms=1000):   # also `async for`
        table = batch.to_arrow()             # columns without a Python object a message
        consumer.commit()                    # or commit({queue: offset})
"""


def printed(number: int, folder: Path) -> list[str]:
    """Lines the page's example prints."""
    done = run_example(examples((DOCS / "pull.md").read_text())[number], folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_example_of_batches_adds_up_every_message(tmp_path: Path) -> None:
    assert printed(0, tmp_path) == [str(sum(range(1000)))]


def test_the_example_of_batches_in_order_polls_every_queue_under_its_lock(tmp_path: Path) -> None:
    lines = printed(1, tmp_path)
    assert sum(int(line.split()[1]) for line in lines) == 1000
    assert all(int(line.split()[-1]) > 0 for line in lines), "an epoch of each"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_loop_of_the_example_without_a_traceback(
    broker: EmbeddedBroker, producer: Producer, tmp_path: Path, number: signal.Signals
) -> None:
    queue = producer.queues("orders")[0]
    code = examples((DOCS / "pull.md").read_text())[2].replace(
        "127.0.0.1:9876", broker.name_servers
    )
    producer.send(Message("orders", b"the topic is there"), queue=queue)
    with PullConsumer("audit", name_servers=broker.name_servers) as other:
        other.update_consume_offset(queue, 0)  # a new group would begin at the end
        with subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            try:
                assert program.stdout is not None
                assert program.stdout.readline() == f"{queue} from 0\n"
                program.send_signal(number)
                out, errors = program.communicate(timeout=60)
            finally:
                program.kill()
        assert (program.returncode, out, errors) == (0, "stopped\n", "")
        assert other.fetch_consume_offset(queue, from_store=True) == 1


def test_the_example_of_single_pulls_reads_a_queue_to_its_end(tmp_path: Path) -> None:
    lines = printed(3, tmp_path)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "32 from 0",
        "32 from 32",
        "32 from 64",
        "4 from 96",
    ]


def test_the_snippet_the_interface_was_agreed_on_runs(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    code = AGREED.replace('"..."', repr(broker.name_servers))
    queues = producer.queues("orders")
    for number in range(80):
        producer.send(Message("orders", b"%d" % number), queue=queues[number % 8])
    with PullConsumer("audit", name_servers=broker.name_servers) as other:
        for queue in queues:  # a new group would begin at the end
            other.update_consume_offset(queue, 3)
        names: dict[str, object] = {}
        exec(compile(code, "api.md", "exec"), names)
        assert [other.fetch_consume_offset(queue, from_store=True) for queue in queues] == [10] * 8
    assert names["table"].num_rows in range(1, 8)  # type: ignore[attr-defined]


def test_the_example_of_a_time_range_reads_up_to_the_ends_of_now(tmp_path: Path) -> None:
    assert printed(4, tmp_path) == ["300 3"]
