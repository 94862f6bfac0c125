"""A consumer group of processes under traffic of a fixed rate, for benchmarks that move queues."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import workloads
from bench.boot_time import to_boot_time_ns
from bench.machine import ROOT, environment
from bench.peers.java_classes import class_path
from ordermq import Message, Producer

TOPIC = "moving"
GROUP = "movers"
WAIT_S = 90  # Java's unlock may wait for 20 s, and the next try for its lock another 20


def ordermq_member() -> list[str]:
    """Return the command of a member of ordermq."""
    return [sys.executable, "-m", "bench.end_to_end.hand_off_member"]


def java_member(folder: Path) -> list[str]:
    """Return the command of a member of Java's client, which logs into `folder`.

    Its clock stops while the host is suspended, so the difference to ours is passed along.
    """
    settings = [f"-Duser.home={folder}", f"-DtoBootTimeNs={to_boot_time_ns()}"]
    return ["java", "-Xmx256m", *settings, "-cp", class_path(), "Moving"]


class Member:
    """A member process; counts the queues it reports as assigned.

    Args:
        program: the command, from one of the functions above.
        group: the consumer group.
        package: a folder with another `ordermq` to run instead of this checkout's.
    """

    def __init__(
        self,
        address: str,
        history: Path,
        listener_ms: int,
        program: Sequence[str] = (),
        group: str = GROUP,
        package: Path | None = None,
    ) -> None:
        self.history = history
        work = [address, TOPIC, group, str(history), str(listener_ms)]
        self.process = subprocess.Popen(
            [*(program or ordermq_member()), *work],
            stdout=subprocess.PIPE,
            text=True,
            cwd=package or ROOT,
            env=environment(package),
        )
        self._assigned = threading.Semaphore(0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self._assigned.release()

    def wait_for_queues(self, count: int) -> None:
        """Return when it has been assigned `count` more queues."""
        for _ in range(count):
            if not self._assigned.acquire(timeout=WAIT_S):
                raise SystemExit(f"{self.history.name}: no {count} queues within {WAIT_S} s")

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait(30)

    def leave(self) -> None:
        """Send SIGTERM and wait for a clean end."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(30):
            raise SystemExit(f"{self.history.name}: ended with {self.process.returncode}")


@contextmanager
def traffic(address: str) -> Iterator[None]:
    """Send `HAND_OFF_RATE` messages per second, evenly to all queues."""
    stop = threading.Event()
    queues = workloads.HAND_OFF_QUEUES
    producer = Producer("bench", name_servers=address, default_topic_queue_nums=queues)
    producer.start()
    producer.send(Message(TOPIC, b"first"))
    targets = producer.queues(TOPIC)

    def run() -> None:
        started, sent = time.perf_counter(), 0
        while not stop.is_set():
            due = int((time.perf_counter() - started) * workloads.HAND_OFF_RATE)
            for number in range(sent, due):
                producer.send_batch([Message(TOPIC, b"x" * 100)], queue=targets[number % queues])
            sent = due
            stop.wait(0.002)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.close()
