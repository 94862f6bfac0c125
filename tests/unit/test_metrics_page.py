"""docs/metrics.md has every metric of the code, and the code has those of the conventions."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import yaml

from ordermq.metrics.instruments import READ, TIMED, Kind

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "ci" / "metrics_page.py")
)
EVERY = (*READ, *TIMED)
LEVELS: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "opentelemetry" / "levels.json").read_text()
)["metrics"]
# A topic's name is no template, a group has no subscription besides it, and a queue keeps its
# name while its broker moves to another address: a new series for each address would break rates.
NOT_HERE = {
    "messaging.destination.template",
    "messaging.destination.subscription.name",
    "server.address",
    "server.port",
}


def test_the_page_is_up_to_date() -> None:
    page = SCRIPT["PAGE"].read_text()
    assert page == SCRIPT["filled"](page), "run ci/metrics_page.py"
    assert (
        "| `ordermq.consumer.lag.time` <br> `ordermq_consumer_lag_time_seconds` | gauge, s |"
        in page
    )


def test_names_are_unique_and_legal() -> None:
    assert len({one.name for one in EVERY}) == len(EVERY)
    assert len({one.prometheus_name for one in EVERY}) == len(EVERY)
    for one in EVERY:
        assert re.fullmatch(r"(messaging|ordermq)(\.[a-z_]+)+", one.name)
        assert one.prometheus_name.endswith("_total") is (one.kind is Kind.COUNTER)
        assert one.meaning.endswith(".")


def test_the_alert_rules_ask_for_what_there_is_and_say_what_to_do() -> None:
    path = SCRIPT["PAGE"].parent / "prometheus-alerts.yml"
    (group,) = yaml.safe_load(path.read_text())["groups"]
    known = {one.prometheus_name for one in EVERY}
    code = [each.read_text() for each in (path.parents[1] / "ordermq").rglob("*.py")]
    for rule in group["rules"]:
        asked = set(re.findall(r"\bordermq_\w+", rule["expr"]))
        assert asked, rule
        assert asked <= known, rule["alert"]
        for event in re.findall(r'event="(\w+)"', rule["expr"]):
            assert any(f'("{event}"' in text for text in code), event
        assert set(rule["annotations"]) == {"summary", "remedy"}
        # What a summary shows, the query must keep.
        kept = re.search(r" by \(([^)]*)\)", rule["expr"])
        assert kept is not None, rule["alert"]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= set(kept[1].split(", ")), rule["alert"]


def test_the_dashboard_asks_for_what_there_is() -> None:
    panels = json.loads((SCRIPT["PAGE"].parent / "grafana-dashboard.json").read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    histograms = {one.prometheus_name for one in EVERY if one.kind is Kind.HISTOGRAM}
    known = {one.prometheus_name for one in EVERY} - histograms
    parts = {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}
    assert set(re.findall(r"\b((?:messaging|ordermq)_\w+)\s*[{\[]", asked)) <= known | parts
    assert known - set(re.findall(r"\w+", asked)) == {"ordermq_producer_events_total"}


def test_what_the_conventions_name_has_their_name() -> None:
    assert {one.name for one in EVERY if one.name.startswith("messaging.")} == {
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.process.duration",
    }


def test_the_metrics_of_the_conventions_have_every_attribute_that_these_require() -> None:
    for one in EVERY:
        levels = LEVELS.get(one.name)
        if levels is None:
            assert one.name.startswith("ordermq.")
            continue
        wanted = {name for name, level in levels.items() if level != "recommended"} - NOT_HERE
        if one.name == "messaging.client.consumed.messages":
            wanted.remove("error.type")  # what failed is not consumed: ordermq.consumer.failed
        assert wanted <= set(one.all_labels), one.name
        assert set(one.all_labels) <= levels.keys(), one.name


def test_every_label_gets_its_value_in_the_order_of_the_names() -> None:
    operations = next(one for one in EVERY if one.name == "messaging.client.operation.duration")
    assert operations.labelled(("commit", "orders", "g", "")) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "commit",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "g",
        "error.type": "",
        "messaging.operation.type": "settle",
    }
    for one in EVERY:
        values = tuple("send" if "operation" in label else label for label in one.labels)
        assert tuple(one.labelled(values)) == one.all_labels
