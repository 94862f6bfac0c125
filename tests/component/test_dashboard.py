"""The Grafana dashboard's queries, asked of a real Prometheus that scrapes two members."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from tests.component.conftest import eventually

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
ALERTS = DASHBOARD.with_name("prometheus-alerts.yml")
MEMBER = """
import sys
import threading

from ordermq import Admin, DeadLetter, Message, Producer, PushConsumer
from ordermq.metrics.prometheus import PrometheusMetrics
from prometheus_client import start_http_server

metrics = PrometheusMetrics()
metrics.watch_group(Admin(sys.argv[1]), "g")
producer = Producer("p", name_servers=sys.argv[1])
metrics.watch_producer(producer)
consumer = PushConsumer(
    "g",
    name_servers=sys.argv[1],
    consume_from_where="first_offset",
    on_failure=DeadLetter(max_attempts=2),
    suspend_current_queue_time_ms=10,
    commit_interval_ms=100,
)
consumer.subscribe("orders")


@consumer.orderly
def listen(messages, context):
    if messages[0].body == b"poison" or context.attempt:
        raise ValueError("poison")


metrics.watch_consumer(consumer)
server, _ = start_http_server(0, "127.0.0.1")
with producer:
    producer.send(Message("orders", b"paid"), sharding_key="k")
    with consumer:
        print(server.server_port, flush=True)
        # Until the test closes our input: sends all the time, some of them poison.
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        number = 0
        while not ended.wait(0.05):
            number += 1
            body = b"paid" if number % 10 else b"poison"
            producer.send(Message("orders", body), sharding_key=f"k{number}")
"""


@contextlib.contextmanager
def members(folder: Path, broker: EmbeddedBroker, count: int) -> Iterator[list[int]]:
    """Members of a group, which send, too; yields the ports of their metrics."""
    (folder / "member.py").write_text(MEMBER)
    command = [sys.executable, str(folder / "member.py"), broker.name_servers]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parents[2],
                )
            )
            for _ in range(count)
        ]
        for each in started:
            stack.callback(each.kill)
        ports = []
        for each in started:
            assert each.stdout is not None
            ports.append(int(each.stdout.readline()))
        yield ports


@contextlib.contextmanager
def prometheus(binary: str, folder: Path, ports: list[int]) -> Iterator[str]:
    """A Prometheus that scrapes these ports; yields its address."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": "ordermq",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    # It cannot choose a free port itself; one that is taken meanwhile ends it at once.
    for attempt in range(5):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        log = folder / f"prometheus-{attempt}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    binary,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data-{attempt}",
                    f"--web.listen-address={address}",
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(
                lambda process=process, address=address: (  # type: ignore[misc]
                    process.poll() is not None or is_ready(address)
                ),
                f"it is ready, see {log}",
                60,
            )
            if process.poll() is None:
                yield f"http://{address}"
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail(f"Prometheus does not start: {log.read_text()}")


def is_ready(address: str) -> bool:
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"http://{address}/-/ready", timeout=5).status == 200
    return False


def ask(address: str, query: str) -> list[dict[str, Any]]:
    """The series that a query has now, without those that are not a number."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return [series for series in found if not math.isnan(float(series["value"][1]))]


def queries() -> dict[str, str]:
    """Every query of the dashboard, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$__rate_interval", "30s")
        .replace("$group", "g")
        for panel in panels
        for target in panel["targets"]
    }


def test_every_query_of_the_dashboard_finds_something(
    tmp_path: Path, broker: EmbeddedBroker
) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no Prometheus here: install it (Debian: apt install prometheus)")
    with (
        members(tmp_path, broker, 2) as ports,
        prometheus(binary, tmp_path, ports) as address,
    ):
        wanted = queries()
        assert len(wanted) > 20
        missing = dict(wanted)

        def is_all_found() -> bool:
            for name, query in list(missing.items()):
                if ask(address, query):
                    del missing[name]
            return not missing

        with contextlib.suppress(pytest.fail.Exception):
            eventually(is_all_found, "every query finds something", 60)
        assert missing == {}
        both = "count(ordermq_consumer_ready)"
        eventually(lambda: ask(address, both)[0]["value"][1] == "2", "two members are scraped")
        queues = 'sum by (instance) (ordermq_consumer_queues{messaging_destination_name="orders"})'
        held = {series["metric"]["instance"]: series["value"][1] for series in ask(address, queues)}
        assert len(held) == 2, "both hold queues"


def test_promtool_finds_no_fault_in_the_alert_rules() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool here: install it (Debian: apt install prometheus)")
    done = subprocess.run(
        [tool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{ALERTS.read_text().count('- alert: ')} rules found" in done.stdout
