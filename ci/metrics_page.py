"""Write the table of metrics in docs/metrics.md from the instruments of the code.

.venv/bin/python ci/metrics_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ordermq.metrics.instruments import (
    ERROR,
    EVENT,
    GROUP,
    OPERATION,
    PARTITION,
    PRODUCER_GROUP,
    READ,
    TIMED,
    TOPIC,
    Instrument,
    Kind,
    label_of_prometheus,
)

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
_BEGIN, _END = "<!-- metrics -->\n", "<!-- end -->"
# Whole names in each row would leave no room for the meaning: the page says what each word is.
_WORDS: Final = {
    TOPIC: "topic",
    PARTITION: "queue",
    GROUP: "group",
    PRODUCER_GROUP: "producer group",
    OPERATION: "operation",
    ERROR: "error",
    EVENT: "event",
}


def table() -> str:
    """Return tables of the labels and of every instrument, in Markdown."""
    rows = ["| label | OpenTelemetry | Prometheus |", "|---|---|---|"]
    rows += [
        f"| {word} | `{name}` | `{label_of_prometheus(name)}` |" for name, word in _WORDS.items()
    ]
    rows += ["", "| OpenTelemetry; Prometheus | kind | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` <br> `{_in_prometheus(one)}` | {_kind(one)} "
        f"| {', '.join(_WORDS[label] for label in one.labels)} | {one.meaning} |"
        for one in (*READ, *TIMED)
    ]
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the page with the table of the code."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table()}\n{_END}{after}"


def _in_prometheus(one: Instrument) -> str:
    return one.prometheus_name + "_bucket" * (one.kind is Kind.HISTOGRAM)


def _kind(one: Instrument) -> str:
    return f"{one.kind}, {one.unit}" if one.unit else str(one.kind)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
