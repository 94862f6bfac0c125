"""The examples of docs/pull.md run as they stand, and so does the one the interface was made of."""

from __future__ import annotations

from pathlib import Path

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


def test_the_example_of_single_pulls_reads_a_queue_to_its_end(tmp_path: Path) -> None:
    lines = printed(2, tmp_path)
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
