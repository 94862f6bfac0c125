"""Reduce OpenTelemetry's registry to what it wants of RocketMQ's spans and metrics.

    python levels.py CHECKOUT > levels.json

CHECKOUT is https://github.com/open-telemetry/semantic-conventions at the tag v1.44.0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

SPANS: Final = {
    "send": "span.messaging.rocketmq.send.producer",
    "process": "span.messaging.rocketmq.process.consumer",
}
METRICS: Final = (
    "messaging.client.operation.duration",
    "messaging.process.duration",
    "messaging.client.sent.messages",
    "messaging.client.consumed.messages",
)


def main(checkout: Path) -> None:
    """Write the level of each attribute of each span and metric, and the known values."""
    documents = [
        yaml.safe_load(path.read_text())
        for path in sorted((checkout / "model" / "messaging").glob("*.yaml"))
    ]
    groups: dict[str, Any] = {}
    for document in documents:
        for kind in ("groups", "attribute_groups", "span_refinements", "spans"):
            for group in document.get(kind) or ():
                groups[group.get("id") or group["type"]] = group
    found = {
        "spans": {name: levels(groups, group) for name, group in SPANS.items()},
        "metrics": {name: levels(groups, f"metric.{name}") for name in METRICS},
        "values": values(groups),
    }
    sys.stdout.write(json.dumps(found, indent=1, sort_keys=True) + "\n")


def levels(groups: dict[str, Any], name: str) -> dict[str, str]:
    """Return the attributes of a group and of all that it refers to, with their levels."""
    group = groups[name]
    found: dict[str, str] = {}
    for parent in (group.get("extends"), group.get("ref")):
        if parent:
            found |= levels(groups, parent)
    for attribute in group.get("attributes") or ():
        if "ref_group" in attribute:
            for each, level in levels(groups, attribute["ref_group"]).items():
                found.setdefault(each, level)
            continue
        # A refinement without a level keeps the one of its parent; the default is recommended.
        level = attribute.get("requirement_level")
        if level is None:
            found.setdefault(attribute["ref"], "recommended")
        else:
            found[attribute["ref"]] = level if isinstance(level, str) else next(iter(level))
    return found


def values(groups: dict[str, Any]) -> dict[str, list[str]]:
    """Return the values of each attribute that has a list of them."""
    return {
        attribute["id"]: [member["value"] for member in attribute["type"]["members"]]
        for group in groups.values()
        for attribute in group.get("attributes") or ()
        if isinstance(attribute.get("type"), dict)
        and ("rocketmq" in attribute["id"] or "operation.type" in attribute["id"])
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
