"""`ordermq run` with real processes: sharing, rolling restarts, crashes, the end (docs/run.md)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ordermq import Message, Producer, PullConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from tests.component.conftest import eventually

MODULE = """
import fcntl
import os

from ordermq import PushConsumer

print("process", os.getpid())
consumer = PushConsumer(
    "g", name_servers=os.environ["ORDERMQ_NAME_SERVERS"], consume_from_where="first_offset"
)
consumer.subscribe("orders")


@consumer.orderly
def listen(messages, context):
    queue = context.message_queue.queue_id
    lines = [f"{os.getpid()} {queue} {message.queue_offset}\\n" for message in messages]
    with open("seen", "a") as file:
        file.write("".join(lines))
    with open("gate", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
"""


# As a program that prints much: of 50 messages more than a pipe and all buffers take.
CHATTY = (
    MODULE.replace("os.getpid())\nconsumer", "os.getpid(), file=sys.stderr)\nconsumer").replace(
        "import os\n", "import os\nimport sys\n"
    )
    + """    for _ in range(10 * len(messages)):
        print("x" * 40_000)
"""
)

TOPIC = "messaging_destination_name"
SHORT_LOCKS = BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=3_000)


@pytest.fixture
def broker_config() -> BrokerConfig:
    # However busy the machine is, no lease is lost: nothing may be repeated.
    return BrokerConfig(broker_name="b", durability="os", lock_max_live_ms=60_000)


def by_process(samples: list[Sample], name: str) -> dict[str, float]:
    """The sum of a metric's samples, by process."""
    found: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.name == name:
            found[sample.labels.get("process", "")] += sample.value
    return dict(found)


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines()


class Run:
    """A running `ordermq run`, its log, and what its listeners got."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_for_log(self, text: str) -> None:
        eventually(lambda: text in self.log, f"{text!r} in the log", 60)

    @property
    def pids(self) -> list[int]:
        """Every process that was started."""
        return [pid for number in (1, 2) for pid in self.pids_of(number)]

    def pids_of(self, number: int) -> list[int]:
        """The processes of one number, in the order in which they were started."""
        said = rf"^\[{number}\] process (\d+)$"
        return [int(pid) for pid in re.findall(said, self.log, re.MULTILINE)]

    def seen(self) -> dict[int, list[int]]:
        """The offsets of each queue, as they came."""
        found = defaultdict(list)
        with contextlib.suppress(FileNotFoundError):
            for line in lines_of(self.folder / "seen"):
                _, queue, offset = map(int, line.split())
                found[queue].append(offset)
        return found

    @contextlib.contextmanager
    def hanging(self, producer: Producer) -> Iterator[None]:
        """Have a listener of each process hang, until the block ends."""
        # Only now that both have queues: a queue is not handed over while its listener hangs.
        self.wait_for_queues()
        eventually(lambda: self.count() == 50, "what was sent before is consumed", 60)
        seen = self.folder / "seen"
        seen.unlink()
        with (self.folder / "gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)  # each listener waits for its end
            send(producer, 50)
            eventually(
                lambda: seen.exists() and len({line.split()[0] for line in lines_of(seen)}) == 2,
                f"both consume: {self.log}",
                60,
            )
            yield

    def count(self) -> int:
        return sum(map(len, self.seen().values()))

    def get(self, path: str) -> tuple[int, str]:
        (url,) = re.findall(r"metrics at (http://.*)/metrics", self.log)
        try:
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def scrape(self) -> list[Sample]:
        """Every sample of the one port."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return [sample for family in families for sample in family.samples]

    def holders(self) -> list[str] | None:
        """The processes that hold queues of the topic, if both have answered."""
        samples = self.scrape()
        if by_process(samples, "ordermq_run_process_up") != {"1": 1.0, "2": 1.0}:
            return None
        of_topic = [each for each in samples if each.labels.get(TOPIC) == "orders"]
        return sorted(by_process(of_topic, "ordermq_consumer_queues"))

    def ends_with(self, code: int) -> None:
        assert self.process.wait(60) == code, self.log

    def wait_for_queues(self) -> None:
        """Return once every process holds some."""
        eventually(lambda: self.holders() == ["1", "2"], f"both hold queues: {self.log}", 60)


@contextlib.contextmanager
def running(
    folder: Path,
    *options: str,
    target: str = "billing:consumer",
    stdout: int | None = None,
) -> Iterator[Run]:
    with (folder / "log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ordermq", "run", target, "--processes", "2", *options],
            cwd=folder,
            stdout=file if stdout is None else stdout,
            stderr=file,
        )
    run = Run(folder, process)
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        for pid in run.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "billing.py").write_text(MODULE)
    monkeypatch.setenv("ORDERMQ_NAME_SERVERS", broker.name_servers)
    # The folder of the program is not that of ordermq.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def send(producer: Producer, count: int) -> None:
    producer.send_many((Message("orders", b"paid"), f"k{n}") for n in range(count))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        # Whoever adopts orphans here may leave them as zombies.
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_rolling_restart_under_load_loses_and_repeats_nothing(
    folder: Path, producer: Producer
) -> None:
    send(producer, 50)
    with running(folder, "--metrics-port", "0") as run:
        run.wait_for_log("metrics at")
        run.wait_for_queues()
        assert run.get("/live") == (200, "alive\n")
        assert run.get("/nothing")[0] == 404
        eventually(lambda: run.get("/ready") == (200, "ready\n"), "ready")
        run.process.send_signal(signal.SIGHUP)
        while "rolling restart done" not in run.log:
            send(producer, 5)
            assert "ended at process" not in run.log, run.log
            assert run.process.poll() is None, run.log
        eventually(lambda: len(set(run.pids)) == 4, "both were replaced")
        run.wait_for_queues()
        send(producer, 50)
        sent = sum(queue_end(producer).values())
        eventually(lambda: run.count() == sent, f"all {sent} are consumed", 60)
        consumed = "messaging_client_consumed_messages_total"
        eventually(lambda: sum(by_process(run.scrape(), consumed).values()) >= 50, "and counted")
        assert set(by_process(run.scrape(), "ordermq_run_process_up").values()) == {1.0}
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(0)
        assert run.seen() == {
            queue: list(range(end)) for queue, end in queue_end(producer).items() if end
        }
        assert "[run] stopping" in run.log


def queue_end(producer: Producer) -> dict[int, int]:
    """The end of each queue."""
    with PullConsumer("reader", name_servers=producer.name_servers[0]) as reader:
        queues = reader.fetch_subscribe_message_queues("orders")
        return {queue.queue_id: reader.max_offset(queue) for queue in queues}


@pytest.mark.parametrize("broker_config", [SHORT_LOCKS], ids=["short locks"])
def test_a_killed_process_is_started_again_and_nothing_is_lost(
    folder: Path, producer: Producer
) -> None:
    send(producer, 50)
    with running(folder, "--metrics-port", "0") as run:
        run.wait_for_log("metrics at")
        run.wait_for_queues()
        (killed,) = run.pids_of(1)
        os.kill(killed, signal.SIGKILL)
        run.wait_for_log("ended with SIGKILL; restarting it in 1 s")
        assert f"(pid {killed})" in run.log
        send(producer, 50)
        eventually(lambda: len(run.pids) == 3, "another was started", 60)
        eventually(lambda: sum(len(set(got)) for got in run.seen().values()) == 100, "all", 60)
        up = {"1": 1.0, "2": 1.0}
        eventually(lambda: by_process(run.scrape(), "ordermq_run_process_up") == up, "both answer")
        assert sum(by_process(run.scrape(), "ordermq_run_restarts").values()) == 1
        run.process.send_signal(signal.SIGINT)
        run.ends_with(0)


def test_new_code_that_does_not_start_ends_the_rolling_restart_at_the_first_process(
    folder: Path, producer: Producer
) -> None:
    send(producer, 50)
    with running(folder, "--metrics-port", "0", "--reload") as run:
        run.wait_for_log("metrics at")
        run.wait_for_queues()
        (second,) = run.pids_of(2)
        (folder / "billing.py").write_text("print('new code'")
        run.wait_for_log("rolling restart ended at process 1")
        assert "SyntaxError" in run.log
        assert is_running(second)
        assert run.get("/ready")[0] == 503
        (folder / "billing.py").write_text(MODULE)
        run.wait_for_log("rolling restart done")
        assert not is_running(second)
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(0)


def test_a_stop_during_a_rolling_restart_waits_for_listeners(
    folder: Path, producer: Producer
) -> None:
    send(producer, 50)
    with running(folder, "--metrics-port", "0") as run:
        run.wait_for_log("metrics at")
        with run.hanging(producer):
            run.process.send_signal(signal.SIGHUP)
            eventually(lambda: run.holders() == ["2"], "1 is closing", 60)
            run.process.send_signal(signal.SIGTERM)
            run.wait_for_log("[run] stopping")
        run.ends_with(0)
        assert run.seen() == {queue: sorted(set(got)) for queue, got in run.seen().items()}


def test_processes_stop_when_their_supervisor_was_killed(folder: Path, producer: Producer) -> None:
    send(producer, 50)
    with running(folder) as run:
        eventually(lambda: run.count() == 50, "all are consumed", 60)
        run.process.kill()
        eventually(lambda: not any(map(is_running, run.pids)), "no orphan runs on", 60)


@pytest.mark.parametrize("broker_config", [SHORT_LOCKS], ids=["short locks"])
def test_output_that_nobody_reads_stops_nothing(folder: Path, producer: Producer) -> None:
    (folder / "billing.py").write_text(CHATTY)
    send(producer, 50)
    with running(folder, "--metrics-port", "0", stdout=subprocess.PIPE) as run:
        run.wait_for_log("metrics at")
        run.wait_for_queues()
        eventually(lambda: run.count() == 50, "listeners are not stopped", 60)
        run.wait_for_log("[run] nobody reads stdout; lines are dropped until somebody does")
        assert run.log.count("nobody reads") == 1, "of many lines, one report"
        assert by_process(run.scrape(), "ordermq_run_dropped_lines")[""] > 0
        (killed,) = run.pids_of(1)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: len(run.pids) == 3, "another was started", 60)
        run.wait_for_queues()

        assert run.process.stdout is not None
        with run.process.stdout as file:
            reader = threading.Thread(target=lambda: deque(file, maxlen=0))
            reader.start()
            while "[run] stdout is read again; " not in run.log:
                send(producer, 1)
            assert re.search(r"read again; [1-9]\d* lines were dropped", run.log)
            run.process.send_signal(signal.SIGTERM)
            run.ends_with(0)
            reader.join(60)


def test_what_cannot_be_run_ends_with_a_usage_error(folder: Path) -> None:
    with running(folder, target="nosuch:consumer") as run:
        run.ends_with(2)
        assert "error: nosuch:consumer: there is no module 'nosuch' in " in run.log
        assert "Traceback" not in run.log
        assert "cannot start, see above; stopping" in run.log


def test_processes_of_an_async_consumer_are_ready_and_measured(
    folder: Path, producer: Producer
) -> None:
    send(producer, 1)
    module = MODULE.replace("PushConsumer", "AsyncConsumer").replace(
        "def listen", "async def listen"
    )
    (folder / "billing.py").write_text(module)
    with running(folder, "--metrics-port", "0") as run:
        run.wait_for_log("metrics at")
        run.wait_for_queues()
        eventually(lambda: run.get("/ready") == (200, "ready\n"), f"ready: {run.log}")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(0)
        assert "Traceback" not in run.log


def test_a_second_signal_does_not_wait_for_processes_that_do_not_end(
    folder: Path, producer: Producer
) -> None:
    send(producer, 1)
    with running(folder, "--stop-timeout", "600") as run:
        eventually(lambda: len(run.pids) == 2 and run.seen(), "a message was consumed", 60)
        for pid in run.pids:
            os.kill(pid, signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        run.wait_for_log("stopping")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(1)
        assert "process 1 has not ended in time; killing it" in run.log


@pytest.mark.parametrize(
    ("options", "signals"), [(("--stop-timeout", "0.5"), 1), (("--stop-timeout", "600"), 2)]
)
@pytest.mark.parametrize("kind", ["PushConsumer", "AsyncConsumer"])
def test_processes_that_leave_without_waiting_for_listeners_end_with_1_and_say_so(
    folder: Path, producer: Producer, options: tuple[str, ...], signals: int, kind: str
) -> None:
    (folder / "billing.py").write_text(MODULE.replace("PushConsumer", kind))
    send(producer, 50)
    with running(folder, "--metrics-port", "0", *options) as run:
        run.wait_for_log("metrics at")
        with run.hanging(producer):
            run.process.send_signal(signal.SIGTERM)
            run.wait_for_log("[run] stopping")
            if signals == 2:
                run.process.send_signal(signal.SIGTERM)
            run.ends_with(1)
        for number in (1, 2):
            assert re.search(
                rf"^\[run\] process {number} \(.*\) left without handing over its queues: ",
                run.log,
                re.MULTILINE,
            )
            # A second signal may end a process before it has come to that.
            told = re.search(rf"^\[{number}\] .*closing with batches in progress", run.log, re.M)
            killed = re.search(rf"^\[run\] process {number} \(SIG", run.log, re.M)
            assert told or (killed and signals == 2)


def test_a_signal_that_another_thread_gets_ends_run(folder: Path, producer: Producer) -> None:
    send(producer, 1)
    kill = "signal.pthread_kill(threading.get_ident(), signal.SIGTERM)"
    script = MODULE.replace("    queue = ", f"    {kill}\n    queue = ")
    script = f"import signal, threading\n{script}\nprint(consumer.run())\n"
    (folder / "stops.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "stops.py"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.splitlines()[-1] == "True", ran.stderr
