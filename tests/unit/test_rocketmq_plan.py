"""The plan of an instance of ci/rocketmq.sh."""

from __future__ import annotations

import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "ci" / "rocketmq"


def of_script(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, Any]:
    """Return what a module of the script has; its modules are imported by plain names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for each in FOLDER.glob("*.py"):
        monkeypatch.delitem(sys.modules, each.stem, raising=False)
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **given: Any) -> dict[str, Any]:
    """Return the plan of each part by its name."""
    script = of_script(monkeypatch, "cluster_plan")
    options = Namespace(
        brokers=1, slave=False, elections=None, proxy=None, set=[], proxy_set=[], properties=[],
        heap=256, java=[], env=[],
    )  # fmt: skip
    for name, value in given.items():
        setattr(options, name, value)
    plan: dict[str, Any] = script["plan_parts"](tmp_path, options)
    return plan


@pytest.mark.parametrize(
    ("mode", "part", "settings"), [("cluster", "proxy", "settings"), ("local", "broker-a", "proxy")]
)
def test_settings_of_a_proxy_are_written_as_json_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, part: str, settings: str
) -> None:
    given = ["enableBatchAck=true", "grpcThreadPoolNums=4", "metricsExporterType=DISABLE"]
    plan = planned(monkeypatch, tmp_path, proxy=mode, proxy_set=given)
    found = plan[part][settings]
    assert found["enableBatchAck"] is True
    assert found["grpcThreadPoolNums"] == 4
    assert found["metricsExporterType"] == "DISABLE"
    assert found["proxyMode"] == mode.upper()


def test_settings_of_brokers_are_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# of a test\n\nflushDiskType = SYNC_FLUSH\n")
    plan = planned(monkeypatch, tmp_path, properties=[file], set=["autoCreateTopicEnable=false"])
    found = plan["broker-a"]["settings"]
    assert (found["flushDiskType"], found["autoCreateTopicEnable"]) == ("SYNC_FLUSH", "false")


@pytest.mark.parametrize(
    "given",
    [{"proxy_set": ["a=1"]}, {"proxy": "cluster", "proxy_set": ["a"]}, {"set": ["a"]}],
)
def test_a_setting_without_a_value_or_a_proxy_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(Exception, match=r"expected a setting|needs --proxy"):
        planned(monkeypatch, tmp_path, **given)


@pytest.mark.parametrize(
    ("why", "starts"), [("create system broadcast topic failed", 3), ("no such setting", 1)]
)
def test_a_proxy_that_no_broker_answered_in_time_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str, starts: int
) -> None:
    kind = of_script(monkeypatch, "proxy")["Proxy"]
    proxy = kind(tmp_path, "5.3.3", "proxy", {"port": 1})
    started = [1]

    def wait(self: object, name_server: str) -> None:
        raise sys.modules["console"].CommandError(f"proxy ended while it started; {why}")

    monkeypatch.setattr(sys.modules["processes"].Part, "wait_until_ready", wait)
    monkeypatch.setattr(proxy, "start", lambda: started.append(1))
    with pytest.raises(sys.modules["console"].CommandError, match=why):
        proxy.wait_until_ready("")
    assert len(started) == starts
