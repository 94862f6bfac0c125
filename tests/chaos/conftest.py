"""A broker and members as processes that may be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.clock import CLOCK_ID
from ordermq.events import EventType, History

DEADLINE_S = 40.0
LEASE_MS = 3_000
ROOT = Path(__file__).resolve().parents[2]


def whole_lines(path: Path) -> list[str]:
    """Lines of a file, without a last one that another process may be writing."""
    return path.read_text().split("\n")[:-1]


class Child:
    """A child process with its standard output line by line; always ended.

    Args:
        environment: variables besides those of this process.
        errors: the file of its standard error; None: that of this process.
    """

    def __init__(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
    ) -> None:
        with contextlib.ExitStack() as stack:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=None if errors is None else stack.enter_context(errors.open("ab")),
                text=True,
                cwd=ROOT,
                env=os.environ | (environment or {}),
            )
        self.woken: list[int] = []  # boot times of its SIGCONTs, in ns
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGCONT:
            self.woken.append(time.clock_gettime_ns(CLOCK_ID))
        self.process.send_signal(number)

    def end(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Stage:
    """One run: folder, broker, members, what they saw, and the histories of all."""

    def __init__(self, folder: Path, lease_ms: int) -> None:
        self.folder = folder
        self.lease_ms = lease_ms
        self.port = 0
        self.sent = 0
        self.producer: Producer | None = None
        self.children: list[Child] = []
        self.histories: list[Path] = []
        self.members_histories: list[Path] = []
        self.harness = History(folder / "harness.jsonl", "harness")
        self.histories.append(folder / "harness.jsonl")
        self.broker = self.start_broker()

    def start_broker(self) -> Child:
        history = self.folder / "broker.jsonl"
        child = self.start_child(
            "tests.chaos.serve", str(self.folder / "broker.db"), str(self.port),
            str(self.lease_ms), str(history),
        )  # fmt: skip
        self.address = child.first_line
        self.port = int(self.address.rsplit(":", 1)[1])
        if history not in self.histories:
            self.histories.append(history)
        self.broker = child
        return child

    def start_member(self, name: str, listener_ms: int = 1) -> Child:
        history = self.folder / f"{name}.jsonl"
        child = self.start_child(
            "tests.chaos.member", self.address, str(history),
            str(self.folder / f"{name}.seen"), str(listener_ms),
        )  # fmt: skip
        self.histories.append(history)
        self.members_histories.append(history)
        return child

    def start_child(self, module: str, *arguments: str) -> Child:
        """Start a module as a process that ends with the stage."""
        child = Child("-m", module, *arguments)
        self.children.append(child)
        return child

    def kill_member(self, child: Child) -> None:
        child.kill()
        self.harness.record(EventType.CRASH, client=child.first_line)

    def send(self, count: int, keys: int = 16) -> None:
        if self.producer is None:
            self.producer = Producer(
                "p", name_servers=self.address, default_topic_queue_nums=8, retry_times=50
            )
            self.producer.start()
        events = (
            (Message("orders", str(n).encode()), f"k{n % keys}")
            for n in range(self.sent, self.sent + count)
        )
        for _ in self.producer.send_stream(events):
            self.sent += 1

    @contextlib.contextmanager
    def flow(self) -> Iterator[None]:
        """Send without end, also while the broker is away, until the block is left."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                while not stop.wait(0.01):
                    self.send(16)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def seen_by(self, name: str) -> list[tuple[int, int, str, int]]:
        path = self.folder / f"{name}.seen"
        rows = []
        for line in whole_lines(path) if path.exists() else ():
            queue, offset, key, body = line.split()
            rows.append((int(queue), int(offset), key, int(body)))
        return rows

    def seen(self) -> list[tuple[int, int, str, int]]:
        return [
            row for path in sorted(self.folder.glob("*.seen")) for row in self.seen_by(path.stem)
        ]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        pause = threading.Event()
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"not within {DEADLINE_S} s: {what}")
            pause.wait(0.02)

    def wait_until_all_seen(self) -> None:
        # By number, not by offset: a batch whose answer died with the broker is sent again,
        # and stands twice in its queue (docs/internals/semantics.md#ordered-sends: duplicates
        # possible, order kept).
        def all_seen() -> bool:
            return len({number for _, _, _, number in self.seen()}) == self.sent

        self.wait_until(all_seen, f"all {self.sent} messages seen")

    def duplicates(self) -> int:
        counts = Counter((queue, offset) for queue, offset, _, _ in self.seen())
        return sum(count - 1 for count in counts.values())

    def close(self) -> None:
        self.harness.close()
        if self.producer is not None:
            self.producer.close(1.0)
        for child in self.children:
            if child.process.poll() is None:
                os.kill(child.process.pid, signal.SIGCONT)
            child.kill()


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A test's stage; a parameter is the locks' life in ms."""
    running = Stage(tmp_path, getattr(request, "param", LEASE_MS))
    yield running
    running.close()
