"""The examples of docs/processes.md run as they stand, in servers and pools of processes."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import PullConsumer
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import eventually

PAGE = Path(__file__).resolve().parents[2] / "docs" / "processes.md"
_BLOCK = re.compile(r"```python\n# ([\w.]+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, and the environment they read."""
    for name, text in _BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("ORDERMQ_NAME_SERVERS", broker.name_servers)
    monkeypatch.setenv("CELERY_BROKER", "memory://")
    return tmp_path


@pytest.fixture
def log(folder: Path) -> Path:
    return folder / "server.log"


@contextlib.contextmanager
def running(log: Path, folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stored(broker: EmbeddedBroker) -> int:
    with PullConsumer("reader", name_servers=broker.name_servers) as reader:
        queues = reader.fetch_subscribe_message_queues("orders")
        return sum(map(reader.max_offset, queues))


def test_gunicorn_with_preload(broker: EmbeddedBroker, folder: Path, log: Path) -> None:
    command = ("-m", "gunicorn", "--workers", "3", "--bind", "127.0.0.1:0", "shop:app")
    with running(log, folder, *command) as server:
        eventually(lambda: "Listening at" in log.read_text(), f"it listens, see {log}")
        (address,) = re.findall(r"Listening at: (http://\S+)", log.read_text())
        pids = set()

        def ask() -> bool:
            for _ in range(20):
                with urllib.request.urlopen(f"{address}/k{len(asked) % 7}", timeout=20) as answer:
                    pids.add(int(answer.read()))
                    asked.append(answer.status)
            return len(pids) == 3

        asked: list[int] = []
        eventually(ask, "each of the workers was asked")
        assert set(asked) == {200}
        assert server.pid not in pids
        assert stored(broker) == len(asked)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    assert "Error" not in log.read_text()
    assert "Traceback" not in log.read_text()
    eventually(lambda: broker.statistics.connections == 0, "the workers disconnected")


CELERY = """
import tasks
from celery.signals import worker_ready

@worker_ready.connect
def send(**_):
    for number in range(40):
        tasks.pay.delay(str(number))

tasks.app.Worker(pool="prefork", concurrency=3, loglevel="INFO", quiet=True).start()
"""


def test_celery_with_its_prefork_pool(broker: EmbeddedBroker, folder: Path, log: Path) -> None:
    with running(log, folder, "-c", CELERY) as worker:
        eventually(lambda: log.read_text().count("succeeded") == 40, f"all are paid, see {log}")
        assert stored(broker) == 40
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()
    assert "UsedAfterFork" not in log.read_text()


def test_a_pool_of_concurrent_futures(broker: EmbeddedBroker, folder: Path, log: Path) -> None:
    with running(log, folder, "pool.py") as program:
        assert program.wait(60) == 0, log.read_text()
    assert log.read_text() == ""
    assert stored(broker) == 1_000


FORGETFUL = """
import atexit, multiprocessing, sys
from ordermq import Message, Producer

kept = []


def work(servers, is_closed_at_exit):
    kept.append(Producer("left", name_servers=servers, request_timeout_ms=600_000))
    kept[0].start()
    if is_closed_at_exit:
        atexit.register(kept[0].close, 0.0)
    kept[0].send_nowait(Message("orders", b"x"))


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(
        target=work, args=(sys.argv[2], sys.argv[3] == "closed")
    )
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ["left", "closed"])
def test_a_process_of_multiprocessing_warns_of_what_it_leaves_open(
    tmp_path: Path, method: str, end: str
) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    # A server that never answers: else a quick machine may have sent it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "forgetful.py", method, address, end],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    warned = done.stderr.count("the program ended without close(): producer left had messages")
    runs_handlers = method == "spawn" or sys.version_info >= (3, 13)
    assert warned == (0 if end == "closed" and runs_handlers else 1), done.stderr
    # Whoever closes in time is heard, too.
    assert ("with messages not acknowledged" in done.stderr) is (warned == 0)
