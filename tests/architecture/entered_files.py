"""Print the files of ordermq that a send, a received message or a moved queue enters, for
test_walks.py.

    python -m tests.architecture.entered_files send|receive|move

The broker and the other client run in a child process, so that only one side is seen; but for a
queue that moves, whose walk passes both members and the broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

HOUSE = Path(__file__).parents[2] / "ordermq"
MESSAGES = 5
DEADLINE_S = 30.0
BROKER = """
import sys
from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker

with EmbeddedBroker() as broker, Producer("p", name_servers=broker.name_servers) as producer:
    producer.send(Message("walk", b"x"), sharding_key="k")
    print(broker.name_servers, flush=True)
    for _ in sys.stdin:
        producer.send(Message("walk", b"x"), sharding_key="k")
"""


class Tracer:
    """Collects the files of every Python function that is called while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: dict[str, None] = {}  # in the order of their first call

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call":
            self.files[frame.f_code.co_filename] = None

    def named(self) -> list[str]:
        inside = (Path(name) for name in self.files if name.startswith(f"{HOUSE}/"))
        return [str(path.relative_to(HOUSE.parent)) for path in inside]


def send(address: str, tracer: Tracer) -> None:
    from ordermq import Message, Producer

    with Producer("q", name_servers=address) as producer:
        producer.send(Message("walk", b"x"), sharding_key="k")  # connects and asks for the route
        sys.setprofile(tracer)
        tracer.is_on = True
        for _ in range(MESSAGES):
            producer.send(Message("walk", b"x"), sharding_key="k")
        tracer.is_on = False
        sys.setprofile(None)


def receive(address: str, tracer: Tracer, server: subprocess.Popen[str]) -> None:
    from ordermq import PushConsumer

    assert server.stdin is not None
    consumer = PushConsumer(
        "g", name_servers=address, consume_from_where="first_offset", commit_interval_ms=50
    )
    consumer.subscribe("walk")

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        for message in messages:
            bytes(message.body)

    with consumer:
        for is_on in (False, True):  # the first message finds the queues being assigned
            tracer.is_on = is_on
            for _ in range(MESSAGES):
                before = consumer.statistics["commits"]
                server.stdin.write("\n")
                server.stdin.flush()
                wait_for_commit(consumer, before)
        tracer.is_on = False


def move(tracer: Tracer) -> None:
    from ordermq import Message, Producer, PushConsumer
    from ordermq.broker import EmbeddedBroker

    def member() -> PushConsumer:
        consumer = PushConsumer("g", name_servers=broker.name_servers)
        consumer.subscribe("walk")
        consumer.orderly(lambda messages, context: None)
        return consumer

    def wait_until_held(consumer: PushConsumer) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not consumer.held_queues():
            if time.monotonic() > deadline:
                raise SystemExit("no queue was assigned")
            time.sleep(0.01)

    with EmbeddedBroker() as broker, Producer("p", name_servers=broker.name_servers) as producer:
        producer.send(Message("walk", b"x"), sharding_key="k")
        with member() as old:
            wait_until_held(old)
            tracer.is_on = True
            with member() as new:
                wait_until_held(new)
            tracer.is_on = False


def wait_for_commit(consumer: Any, before: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while consumer.statistics["commits"] == before:
        if time.monotonic() > deadline:
            raise SystemExit("the message was not committed")
        time.sleep(0.01)  # between two looks at a counter


def beside_a_broker(what: str, tracer: Tracer) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            if what == "send":
                send(address, tracer)
            else:
                receive(address, tracer, server)
        finally:
            server.stdin.close()


def main() -> None:
    tracer = Tracer()
    threading.setprofile(tracer)
    if sys.argv[1] == "move":
        move(tracer)
    else:
        beside_a_broker(sys.argv[1], tracer)
    sys.stdout.write(json.dumps(tracer.named()) + "\n")


if __name__ == "__main__":
    main()
