"""Observers never hurt what they observe: histories, hooks, traces, callbacks, log handlers.

Each place where user code watches raises here, in each way it can: messages arrive in order, locks
and answers go on, `close()` succeeds, the errors are counted and logged once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

# Loaded now, not by the consumer that needs it: pytest compiles modules, and Python 3.11 cannot do
# that while another thread formats a traceback (https://github.com/python/cpython/issues/106905).
import ordermq.consumer.trace_consumption  # noqa: F401
from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.audit.history import HistoryError
from ordermq.broker import EmbeddedBroker
from ordermq.client.trace import TraceDispatcher
from ordermq.config import BrokerConfig
from ordermq.events import EventType, History, NoHistory
from ordermq.loggers import LOGGERS, LogErrors, _handler_thread, dropped_lines
from tests.component.conftest import Seen, eventually

COUNT = 60
ERRORS = [ValueError("an observer's"), OSError(28, "No space left on device"), SystemExit(3)]


class Broken:
    """User code that always raises; as a hook, a callback, a recorder or a log handler."""

    enabled = True
    lines = None

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def fail(self, *arguments: object, **named: object) -> NoReturn:
        self.calls += 1
        raise self.error

    before = after = record = close = __call__ = fail


class Scene:
    """Settings of a run; a place breaks one of them."""

    def __init__(self, error: BaseException, tmp_path: Path) -> None:
        self.broken = Broken(error)
        self.tmp_path = tmp_path
        self.broker: dict[str, Any] = {}
        self.producer: dict[str, Any] = {}
        self.consumer: dict[str, Any] = {}
        self.add_to_producer: list[Any] = []
        self.add_to_consumer: list[Any] = []
        self.errors: Callable[[EmbeddedBroker, Producer, PushConsumer], int] = lambda *_: 1
        self.may_log = 2  # lines about it: of a hook one before and one after

    def run(self, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
        # Locks of the usual life: what is slow here must not cost a lease, and a repeat.
        config = BrokerConfig(durability="os")
        with EmbeddedBroker(self.tmp_path / "b.db", config=config, **self.broker) as broker:
            producer = Producer("p", name_servers=broker.name_servers, **self.producer)
            consumer = PushConsumer(
                "g", name_servers=broker.name_servers, consume_from_where="first_offset",
                commit_interval_ms=50, **self.consumer,
            )  # fmt: skip
            for hook in self.add_to_producer:
                producer.add_hook(hook)
            for hook in self.add_to_consumer:
                consumer.add_hook(hook)
            consumer.subscribe("orders")
            consumer.orderly(seen.take)
            with producer:
                producer.send(Message("orders", b"0"), sharding_key="k")
                consumer.start()
                for number in range(1, COUNT):
                    producer.send(Message("orders", str(number).encode()), sharding_key="k")
                seen.wait_for_count(COUNT)
                eventually(lambda: consumer.statistics["commits"] > 0, "offsets are committed")
                eventually(lambda: self.errors(broker, producer, consumer) > 0, "it is counted")
                assert consumer.health().is_alive
                assert consumer.close(20.0) is True, "every queue was handed over"
            assert broker.health().is_ready
        assert seen.bodies_of("k") == [str(number).encode() for number in range(COUNT)]
        assert self.broken.calls > 0, "the place was passed"
        about = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(about) <= self.may_log, [each.getMessage() for each in about]


def send_hook(scene: Scene) -> None:
    scene.add_to_producer.append(scene.broken)
    scene.errors = lambda broker, producer, consumer: producer.hook_errors


def consume_hook(scene: Scene) -> None:
    scene.add_to_consumer.append(scene.broken)
    scene.errors = lambda broker, producer, consumer: consumer.statistics["hook_errors"]


def on_assigned(scene: Scene) -> None:
    scene.consumer["on_assigned"] = scene.broken
    scene.errors = lambda broker, producer, consumer: consumer.statistics["callback_errors"]
    scene.may_log = 20  # one of each queue, as a callback is called once of each


def on_revoked(scene: Scene) -> None:
    scene.consumer["on_revoked"] = scene.broken
    scene.may_log = 20


def history_of_the_broker(scene: Scene) -> None:
    scene.broker["history"] = scene.broken
    scene.errors = lambda broker, producer, consumer: broker.statistics.history_errors
    scene.may_log = 1


PLACES = [send_hook, consume_hook, on_assigned, on_revoked, history_of_the_broker]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_an_observer_that_raises_hurts_nothing(
    place: Callable[[Scene], None],
    error: BaseException,
    tmp_path: Path,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(error, tmp_path)
    place(scene)
    scene.run(seen, caplog)


def test_a_history_of_a_member_that_cannot_be_written(
    tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(OSError(5, "Input/output error"), tmp_path)
    scene.consumer["history"] = tmp_path / "member.jsonl"
    scene.errors = lambda broker, producer, consumer: consumer.statistics["history_errors"]
    scene.may_log = 1
    monkeypatch.setattr(History, "record", scene.broken.fail)
    scene.run(seen, caplog)


def test_traces_that_cannot_be_sent(
    tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ValueError("a trace"), tmp_path)
    for settings in (scene.producer, scene.consumer):
        settings |= {"enable_msg_trace": True, "trace_interval_ms": 10}
    monkeypatch.setattr(TraceDispatcher, "_send", scene.broken.fail)
    scene.run(seen, caplog)


def test_a_log_handler_that_raises(
    tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(ValueError("a handler's"), tmp_path)
    handler = logging.Handler(logging.DEBUG)
    handler.handle = scene.broken.fail  # type: ignore[method-assign]
    # A hook that raises, too: its error is logged in the middle of each send.
    scene.add_to_producer.append(Broken(ValueError("a hook's")))
    scene.may_log = 1_000
    before, LogErrors.count = LogErrors.count, 0
    loggers = [logging.getLogger(name) for name in LOGGERS]
    try:
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
        scene.errors = lambda broker, producer, consumer: producer.health().log_errors
        scene.run(seen, caplog)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        LogErrors.count += before
    told = [line for line in capsys.readouterr().err.splitlines() if "a log handler raised" in line]
    assert len(told) == 1


def test_a_log_handler_that_blocks(
    tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ValueError("a hook's"), tmp_path)
    release = threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            scene.broken.calls += 1
            # Threads of the test itself wait for their own handlers.
            if record.threadName != "MainThread":
                assert release.wait(60)

    monkeypatch.setattr(_handler_thread._writer, "_limit", 3)
    handler = Blocking(logging.DEBUG)
    scene.may_log = 1
    before = dropped_lines()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    try:
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
        scene.errors = lambda broker, producer, consumer: (
            producer.health().log_lines_dropped - before
        )
        scene.run(seen, caplog)
        release.set()
        eventually(lambda: "a log handler blocked, " in caplog.text, "it is told")
    finally:
        release.set()
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
    assert caplog.text.count("a log handler blocked, ") == 1


def test_every_logger_of_the_sources_is_guarded() -> None:
    sources = Path(__file__).parents[2] / "ordermq"
    wanted = {
        line.split('getLogger("')[1].split('"')[0]
        for path in sources.rglob("*.py")
        for line in path.read_text().splitlines()
        if 'getLogger("' in line
    }
    assert wanted - set(LOGGERS) == set()


def test_an_observer_of_a_poller_that_exits(broker: EmbeddedBroker, producer: Producer) -> None:
    producer.send(Message("orders", b"x"), sharding_key="k")
    broken = Broken(SystemExit(3))
    consumer = LitePullConsumer(
        "g", name_servers=broker.name_servers, ordered=True, consume_from_where="first_offset",
        on_assigned=broken, on_revoked=broken,
    )  # fmt: skip
    consumer.subscribe("orders")
    with consumer:
        eventually(lambda: len(consumer.poll(100)) == 1, "the message is polled")
        assert consumer.health().is_alive
        assert consumer.close()
    assert broken.calls > 0


# A disk that is really full.


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "ordermq-tests", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily, if a failed test has left a file open: the mount must never stay behind.
        if subprocess.run(["umount", str(folder)], capture_output=True).returncode != 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass


def test_a_disk_that_hangs_under_a_history_stops_no_member(
    tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, write = threading.Event(), History._write

    def hanging(history: History, lines: Sequence[bytes]) -> int:
        if threading.current_thread().name == "ordermq-history":
            works.wait(60)
        return write(history, lines)

    monkeypatch.setattr(History, "_write", hanging)
    scene = Scene(ValueError("unused"), tmp_path)
    scene.broken.calls = 1
    scene.consumer["history"] = tmp_path / "member.jsonl"
    try:
        scene.run(seen, caplog)
        assert len((tmp_path / "member.jsonl").read_text().splitlines()) == 1, (
            "it hung all the time"
        )
    finally:
        works.set()


@pytest.mark.parametrize("is_full_at_start", [True, False])
def test_a_full_disk_under_the_histories_stops_neither_broker_nor_member(
    is_full_at_start: bool,
    full_disk: Path,
    tmp_path: Path,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(ValueError("unused"), tmp_path)
    scene.broken.calls = 1
    with History(full_disk / "broker.jsonl", "broker") as history:
        if is_full_at_start:
            fill(full_disk)
        scene.broker["history"] = history
        scene.consumer["history"] = full_disk / "member.jsonl"
        scene.errors = lambda broker, producer, consumer: min(
            broker.statistics.history_errors, consumer.statistics["history_errors"]
        )
        scene.may_log = 2  # one of each
        if not is_full_at_start:
            grow(scene, full_disk)
        scene.run(seen, caplog)
        (full_disk / "filler").unlink()
        history.record(EventType.STORE, topic="t", broker="b", queue=0, offs=[1], keys=[None])
    # What follows the gap must not make an audit believe in the rest.
    with pytest.raises(HistoryError, match=r"not a JSON line|were not recorded"):
        audit([full_disk / "broker.jsonl"])


def grow(scene: Scene, folder: Path) -> None:
    """Fill the disk as the first message is consumed, in the middle of the histories."""

    class Filling(NoHistory):
        def before(self, call: Any) -> None:
            if not (folder / "filler").exists():
                fill(folder)

        def after(self, call: Any) -> None: ...

    scene.add_to_consumer.append(Filling())


def test_a_line_that_a_full_disk_cut_short_spoils_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.jsonl"
    history = History(path, "p")
    write = os.write

    def short(file: int, data: bytes) -> int:
        return write(file, data[:10])

    with monkeypatch.context() as patch:
        patch.setattr("ordermq.events.os.write", short)
        with pytest.raises(OSError, match="No space left"):
            history.record(EventType.STORE, topic="t", broker="b", queue=0, offs=[1], keys=[None])
    history.close()
    lines = path.read_bytes().splitlines()
    assert [line[:6] for line in lines] == [b'{"p":"', b'{"p":"', b'{"p":"']
    assert b"CLOSE" in lines[2]
