"""Parts of `ordermq run` that need no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ordermq.cli.main import main
from ordermq.cli.run.consumer_process import NoConsumer, load
from ordermq.cli.run.metrics_port import merged
from ordermq.cli.run.process_supervisor import restart_pause_s


def metrics_of(count: int) -> str:
    """Return the metrics of one process."""
    registry = CollectorRegistry()
    Counter("sent", "Messages.", ["topic"], registry=registry).labels('a "b"\n').inc(count)
    Histogram("took", "Time.", registry=registry, buckets=(1.0,)).observe(count)
    return generate_latest(registry).decode()


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """The last sample of each name and process."""
    return {
        (sample.name, sample.labels.get("process", "")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_metrics_of_processes_are_told_apart_by_their_number() -> None:
    text = merged({1: metrics_of(2), 2: metrics_of(3), 3: None}, {"restarts": 4})
    found = samples(text)
    assert found["sent_total", "1"] == 2
    assert found["sent_total", "2"] == 3
    assert found["took_count", "2"] == 1
    assert [found["ordermq_run_process_up", number] for number in "123"] == [1, 1, 0]
    assert found["ordermq_run_restarts", ""] == 4
    assert text.count(b"# TYPE sent_total counter") == 1, "one family, whatever its processes"
    assert b'topic="a \\"b\\"\\n"' in text


def test_the_pause_before_a_restart_doubles_up_to_half_a_minute() -> None:
    assert [restart_pause_s(crashes) for crashes in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert restart_pause_s(10_000) == 30


class Idle:
    """A consumer as far as `load` looks."""

    def run(self, timeout_s: float) -> bool:
        return True

    def stop(self) -> None: ...

    def assigned_queues(self) -> list[Any]:
        return []


idle = Idle()
number = 7


def make() -> Idle:
    return idle


def listen(messages: Any, context: Any) -> None:
    """A listener, which somebody took for the consumer."""


def test_a_target_is_a_consumer_or_makes_one() -> None:
    assert load(f"{__name__}:idle") is idle
    assert load(f"{__name__}:make") is idle
    assert isinstance(load(f"{__name__}:Idle"), Idle)
    with pytest.raises(NoConsumer, match="is a int without run, stop, assigned_queues"):
        load(f"{__name__}:number")
    with pytest.raises(NoConsumer, match="has no 'nosuch'"):
        load(f"{__name__}:nosuch")
    with pytest.raises(NoConsumer, match=r"a function with arguments .*: expected a PushConsumer"):
        load(f"{__name__}:listen")


def test_a_module_that_is_not_there_is_named_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoConsumer, match="there is no module 'nosuch_module' in /"):
        load("nosuch_module:consumer")
    with pytest.raises(NoConsumer, match=r"there is no module 'tests\.nosuch'"):
        load("tests.nosuch:consumer")
    # What is missing inside of the user's module is another error: its place is in the traceback.
    (tmp_path / "half_installed.py").write_text("import nosuch_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError):
        load("half_installed:consumer")


def test_a_command_without_a_consumer_says_what_it_expects() -> None:
    ran = CliRunner().invoke(main, ["run", "billing"])
    assert ran.exit_code == 2
