"""Published examples of `rocketmq-python-client` 5.x, with our import, at a proxy of RocketMQ."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Admin
from ordermq.errors import StateError
from tests.dropin.conftest import INSTANCE
from tests.dropin.old_programs import Program
from tests.dropin.test_old_packages import needed
from tests.interop.cluster import Cluster

_IMPORT = re.compile(r"(?m)^from rocketmq import")
ENDPOINT = "foobar.com:8080"  # theirs
TOPICS = {
    "topic": "NORMAL", "half-topic": "TRANSACTION", "fifo-test-topic": "FIFO",
    "delay-topic": "DELAY",
}  # fmt: skip
SENT = "send message success"


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    running = Cluster(Path(INSTANCE))
    for topic, kind in TOPICS.items():
        running.put_topic(topic, {"broker-a": 4}, message_type=kind)
    # The instance may have served an earlier run.
    with Admin(running.name_servers) as admin, contextlib.suppress(StateError):
        admin.create_group("consumer-group", is_orderly=False)
    return running


@pytest.fixture
def examples(fetched: Path, cluster: Cluster, tmp_path: Path) -> Path:
    """Return a folder with the examples.

    Changed are the import, the endpoint, and the topic of transactions, which needs a type.
    """
    needed(fetched, "apache-clients")
    for program in (fetched / "apache-clients" / "python" / "example").glob("*.py"):
        text = _IMPORT.sub("from ordermq.rocketmq.v5 import", program.read_text())
        text = text.replace(ENDPOINT, cluster.grpc.removeprefix("grpc://"))
        if program.name.startswith("transaction"):
            text = text.replace('topic = "topic"', 'topic = "half-topic"')
        (tmp_path / program.name).write_text(text)
    return tmp_path


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Those a test started; ended after it."""
    started: list[Program] = []
    yield started
    for program in started:
        program.end()


def count(lines: list[str], text: str) -> int:
    return sum(text in line for line in lines)


@pytest.mark.parametrize(("name", "messages"), [("normal", 10), ("fifo", 9), ("delay", 1)])
def test_an_example_of_a_producer_sends(examples: Path, name: str, messages: int) -> None:
    lines = Program(examples, f"{name}_producer_example.py").finish()
    assert count(lines, SENT) == messages, lines
    assert count(lines, "exception") == 0


def test_the_example_of_sends_without_waiting_sends(examples: Path) -> None:
    program = Program(examples, "async_producer_example.py")
    program.wait_for(lambda lines: count(lines, SENT) == 10)
    program.press_enter()
    assert count(program.finish(), "exception") == 0


def test_the_example_of_a_consumer_consumes_until_enter_is_pressed(
    examples: Path, programs: list[Program]
) -> None:
    consumer = Program(examples, "push_consumer_example.py")
    programs.append(consumer)
    end = time.monotonic() + 60.0
    # It does not say when it has begun.
    while not count(consumer.lines, "consume message"):
        assert time.monotonic() < end
        Program(examples, "normal_producer_example.py").finish()
        consumer.read()
    consumer.press_enter()
    assert count(consumer.finish(), "exception") == 0


def test_the_example_of_a_transaction_is_asked_about_its_state(examples: Path) -> None:
    program = Program(examples, "transaction_producer_example.py")
    program.wait_for(lambda lines: count(lines, "do TestChecker check") > 0)
    program.press_enter()
    lines = program.finish()
    assert count(lines, SENT) == 1
    assert count(lines, "exception") == 0


def test_the_example_of_a_transaction_commits_itself(examples: Path) -> None:
    name = "transaction_producer_example.py"
    text = (examples / name).read_text()
    (examples / name).write_text(text.replace("check_from_server = True", "check_from_server = 0"))
    lines = Program(examples, name).finish()
    assert count(lines, "commit message:") == 1
    assert count(lines, "do TestChecker check") == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("simple_consumer", "takes ordermq.LitePullConsumer"),
        ("lite_push_consumer", "does not support lite topics"),
        ("lite_producer", "does not support what RocketMQ 5.5 added"),
        ("priority_producer", "does not support what RocketMQ 5.5 added"),
    ],
)
def test_an_example_that_cannot_run_says_why(
    examples: Path, programs: list[Program], name: str, reason: str
) -> None:
    program = Program(examples, f"{name}_example.py")
    programs.append(program)
    program.wait_for(lambda lines: count(lines, reason) > 0)
