"""The same programs for clients over gRPC: ordermq, PyPI's `rocketmq-python-client` 5.x, and, as a
consumer, RocketMQ's own for Java.

python -m bench.peers.grpc_programs {consume,send,member}, for bench_grpc, which starts it by the
interpreter of the client: the official one has a virtual environment of its own. So nothing but the
standard library is imported at the top.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import pwd
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

BODY_BYTES = 100
DEADLINE_S = 200.0
OURS, OFFICIAL = "ordermq", "official client"
BY_POP = "ordermq by POP"  # over the brokers' own protocol, to compare with
JAVA, JAVA_VERSION = "Java client", "5.0.8"
_INVISIBLE_MS = 10_000


class Client(Protocol):
    """A client, as the programs use it."""

    def consume(self, group: str, topic: str, listen: Callable[[bytes], None]) -> Callable[[], Any]:
        """Start a member that calls `listen` per message; return what ends it."""

    def send_one_by_one(self, topic: str, events: Iterator[tuple[bytes, str | None]]) -> None:
        """Send, each after the answer to the last one."""

    def send_in_flight(
        self, topic: str, events: Iterator[tuple[bytes, str | None]], in_flight: int
    ) -> None:
        """Send with so many unanswered at a time, of a key one at most."""


class Ours:
    """Programs of ordermq."""

    def __init__(self, asked: argparse.Namespace) -> None:
        import ordermq

        self._package: Any = ordermq
        self._asked = asked
        if asked.client == BY_POP:
            self._endpoint = {"name_servers": asked.address, "consume_mode": "pop"}
        else:
            self._endpoint = {"name_servers": f"grpc://{asked.address}"}

    def consume(self, group: str, topic: str, listen: Callable[[bytes], None]) -> Callable[[], Any]:
        consumer = self._package.PushConsumer(
            group, consume_message_batch_max_size=1, pop_invisible_ms=_INVISIBLE_MS,
            **self._endpoint,
        )  # fmt: skip
        consumer.subscribe(topic)
        choose = consumer.orderly if self._asked.fifo else consumer.concurrently
        choose(lambda messages, context: listen(bytes(messages[0].body)))
        consumer.start()
        close: Callable[[], Any] = consumer.close
        return close

    def send_one_by_one(self, topic: str, events: Iterator[tuple[bytes, str | None]]) -> None:
        for body, key in events:
            self._producer.send(self._package.Message(topic, body), sharding_key=key)

    def send_in_flight(
        self, topic: str, events: Iterator[tuple[bytes, str | None]], in_flight: int
    ) -> None:
        pairs = ((self._package.Message(topic, body), key) for body, key in events)
        for _ in self._producer.send_stream(pairs, max_in_flight=in_flight):
            pass

    def prepare(self, topic: str) -> None:
        """Start what sends."""
        self._producer = self._package.Producer("bench", **self._endpoint)
        self._producer.start()


class Official:
    """Programs of the official client."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._package: Any = importlib.import_module("rocketmq")
        self._settings = self._package.ClientConfiguration(
            asked.address, self._package.Credentials()
        )

    def consume(self, group: str, topic: str, listen: Callable[[bytes], None]) -> Callable[[], Any]:
        package = self._package

        class Listener(package.MessageListener):  # type: ignore[misc, name-defined]
            def consume(self, message: Any) -> Any:
                listen(message.body)
                return package.ConsumeResult.SUCCESS

        consumer = package.PushConsumer(
            self._settings, group, Listener(), {topic: package.FilterExpression()}
        )
        consumer.startup()
        close: Callable[[], Any] = consumer.shutdown
        return close

    def send_one_by_one(self, topic: str, events: Iterator[tuple[bytes, str | None]]) -> None:
        for body, key in events:
            self._producer.send(self._message(topic, body, key))

    def send_in_flight(
        self, topic: str, events: Iterator[tuple[bytes, str | None]], in_flight: int
    ) -> None:
        # Its futures end on a thread of its own; a key has its next message after the last one's.
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(in_flight):
            free.put(place)
        failures: list[BaseException] = []

        def ended(future: Any, place: int) -> None:
            if (failure := future.exception()) is not None:
                failures.append(failure)
            free.put(place)

        for body, key in events:
            place = free.get()
            message = self._message(topic, body, None if key is None else f"k{place}")
            future = self._producer.send_async(message)
            future.add_done_callback(lambda future, place=place: ended(future, place))
        for _ in range(in_flight):
            free.get()
        if failures:
            raise failures[0]

    def _message(self, topic: str, body: bytes, key: str | None) -> Any:
        message = self._package.Message()
        message.topic, message.body = topic, body
        if key is not None:
            message.message_group = key
        return message

    def prepare(self, topic: str) -> None:
        """Start what sends."""
        self._producer = self._package.Producer(self._settings, (topic,))
        self._producer.startup()


class Clock:
    """Wall and CPU time of the messages after the first `warm`."""

    def __init__(self, warm: int, messages: int) -> None:
        self.warm, self.messages = warm, messages
        self._began = 0.0, 0.0
        self.seconds = self.cpu_seconds = 0.0

    def count(self, done: int) -> bool:
        """Note that so many are done; return True at the last one."""
        if done == self.warm:
            self._began = time.perf_counter(), time.process_time()
        if done < self.warm + self.messages:
            return False
        if done == self.warm + self.messages:
            self.seconds = time.perf_counter() - self._began[0]
            self.cpu_seconds = time.process_time() - self._began[1]
        return True


def consume(client: Client, asked: argparse.Namespace) -> dict[str, Any]:
    """Consume what waits; each message is counted once."""
    clock, over, lock = Clock(asked.warm, asked.messages), threading.Event(), threading.Lock()
    seen: set[bytes] = set()
    calls = 0

    def listen(body: bytes) -> None:
        nonlocal calls
        with lock:
            calls += 1
            if body not in seen:
                seen.add(body)
                if clock.count(len(seen)):
                    over.set()

    client.consume(asked.group, asked.topic, listen)
    if not over.wait(DEADLINE_S):
        print(f"only {len(seen)} messages", file=sys.stderr)
        os._exit(1)
    return {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "again": calls - len(seen)}


def send(client: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """Send, and time the messages after the warm-up."""
    client.prepare(asked.topic)
    clock = Clock(0, asked.messages)

    def events(count: int) -> Iterator[tuple[bytes, str | None]]:
        for number in range(count):
            yield body_of(number), f"k{number % max(asked.in_flight, 1)}" if asked.fifo else None

    def run(count: int) -> None:
        if asked.in_flight > 1:
            client.send_in_flight(asked.topic, events(count), asked.in_flight)
        else:
            client.send_one_by_one(asked.topic, events(count))

    run(asked.warm)
    clock.count(0)
    run(asked.messages)
    clock.count(asked.messages)
    return {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds}


def member(client: Client, asked: argparse.Namespace) -> dict[str, Any]:
    """Report each message with its time of arrival, until standard input ends; then leave."""

    def listen(body: bytes) -> None:
        os.write(1, b"%s %.4f\n" % (body[:10], time.monotonic()))

    close = client.consume(asked.group, asked.topic, listen)
    os.write(1, b"ready\n")
    sys.stdin.read()
    began = time.monotonic()
    close()
    return {"closed_s": time.monotonic() - began}


def consume_in_java(asked: argparse.Namespace) -> NoReturn:
    """Become RocketMQ's own client, which takes its settings from its group."""
    root = pathlib.Path(__file__).parents[2]
    script = [str(root / "ci" / "rocketmq.sh"), "jars", JAVA_VERSION, "--grpc-client"]
    own = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}  # where its cache is
    got = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True, env=own)
    jars = got.stdout.strip()
    source = str(pathlib.Path(__file__).parent / "java" / "grpc" / "GrpcCatchUp.java")
    home = f"-Duser.home={os.environ['HOME']}"  # where its log goes
    work = [asked.address, asked.topic, asked.group, str(asked.warm), str(asked.messages)]
    os.execvp("java", ["java", home, "-Xmx1g", "-cp", jars, source, *work, asked.client])


def body_of(number: int) -> bytes:
    """Return a body that begins with its number, of ten digits."""
    return b"%010d" % number + b"x" * (BODY_BYTES - 10)


PROGRAMS = {"consume": consume, "send": send, "member": member}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("address", help=f"of the proxy; of the name server: {BY_POP}")
    parser.add_argument("topic")
    parser.add_argument("--client", choices=[OURS, OFFICIAL, BY_POP, JAVA], required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--fifo", action="store_true", help="in order")
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    parser.add_argument("--in-flight", type=int, default=1)
    return parser.parse_args()


def finish(row: dict[str, Any]) -> NoReturn:
    """Print the figures and end at once: the official client's shutdown waits for long polls."""
    print(json.dumps(row), flush=True)
    os._exit(0)


def main() -> None:
    asked = arguments()
    if asked.client == JAVA:
        consume_in_java(asked)
    client = Official(asked) if asked.client == OFFICIAL else Ours(asked)
    row = PROGRAMS[asked.program](client, asked)
    python = sys.version.split()[0]
    finish({"peer": asked.client, "messages": asked.messages, "detail": {"python": python}} | row)


if __name__ == "__main__":
    main()
