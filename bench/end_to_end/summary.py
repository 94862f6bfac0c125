"""Medians of a client's runs, and of the ratios to another client's runs in the same rounds."""

from __future__ import annotations

import statistics
from typing import Any


def summarise(rows: list[dict[str, Any]], messages: int) -> dict[str, Any]:
    """Return the medians of the rounds."""
    summary = {
        "messages_per_second": round(statistics.median(messages / r["seconds"] for r in rows)),
        "cpu_us_per_message": round(
            statistics.median(r["cpu_seconds"] / messages * 1e6 for r in rows), 3
        ),
        "peak_mib": round(statistics.median(r["peak_mib"] for r in rows)),
        "rounds": len(rows),
        "detail": rows[-1]["detail"],
    }
    if "broker_cpu_seconds" in rows[0]:
        broker = statistics.median(r["broker_cpu_seconds"] / messages * 1e6 for r in rows)
        summary["broker_cpu_us_per_message"] = round(broker, 3)
    if rows[0].get("pulling_user_seconds"):
        pulling = statistics.median(r["pulling_user_seconds"] / messages * 1e6 for r in rows)
        summary["pulling_user_us_per_message"] = round(pulling, 4)
    return summary


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the ratios of each round: throughput and CPU per message."""

    pairs = list(zip(ours, theirs, strict=True))
    return {
        "rate": round(statistics.median(rate_of(a) / rate_of(b) for a, b in pairs), 3),
        "cpu": round(statistics.median(cpu_of(a) / cpu_of(b) for a, b in pairs), 3),
    }


def rate_of(row: dict[str, Any]) -> float:
    """Return the messages per second of one run; a peer may have read fewer than ordermq."""
    return float(row["messages"] / row["seconds"])


def cpu_of(row: dict[str, Any]) -> float:
    """Return the seconds of CPU per message of one run."""
    return float(row["cpu_seconds"] / row["messages"])
