"""Options of the interpreter that leave parts of the sources out, or look closer."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging
from ordermq import Admin, LitePullConsumer, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main

logging.basicConfig(level=logging.WARNING)
logging.getLogger("asyncio").setLevel(logging.ERROR)  # it tells of each step above 0.1 s
with EmbeddedBroker() as broker:
    with Producer("p", name_servers=broker.name_servers) as producer:
        producer.send(Message("orders", b"paid"), sharding_key="o-17")
    for mode in ("pull", "pop"):
        group = f"by-{mode}"
        consumer = PushConsumer(
            group, name_servers=broker.name_servers, consume_from_where="first_offset",
            consume_mode=mode,
        )
        consumer.subscribe("orders")
        consumer.orderly(lambda messages, context: print(mode, bytes(messages[0].body).decode()))
        with consumer, Admin(broker.name_servers) as admin:
            while admin.group(group, ["orders"]).lag:
                pass
    with LitePullConsumer(
        "polled", name_servers=broker.name_servers, ordered=True, consume_from_where="first_offset"
    ) as consumer:
        consumer.subscribe("orders")
        while not (batch := consumer.poll(1_000)):
            pass
        print("poll", bytes(batch[0].body).decode())
"""


@pytest.mark.parametrize("options", [["-OO"], ["-X", "dev", "-W", "error"]], ids=["-OO", "-X dev"])
def test_a_program_works_without_docstrings_and_under_the_development_mode(
    options: list[str],
) -> None:
    command = [sys.executable, *options, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["pull paid", "pop paid", "poll paid"]
    assert not done.stderr
