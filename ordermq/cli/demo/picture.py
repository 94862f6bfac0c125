"""The picture: the owner of each queue over time, and flights written per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ordermq.audit.history import Histories
from ordermq.cli.demo.check import Outcome
from ordermq.cli.demo.flights import TOPIC
from ordermq.cli.demo.run import BROKER_BACK, Mark
from ordermq.events import EventType

# The palette of Okabe and Ito, which colour-blind readers can distinguish, too.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_STEP_S = 0.5
_NS = 1e9
_FIRST_JOINS_S = 2.0


def draw(outcome: Outcome, path: Path) -> None:
    """Write the PNG."""
    timeline = outcome.timeline
    names = list(dict.fromkeys(timeline.names.values()))
    colour_of = dict(zip(names, _COLOURS, strict=False))
    start = min(mark.t for mark in timeline.marks)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.4), dpi=130, layout="constrained")
        owners, rates = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.5, 1]})
        _draw_owners(owners, outcome, colour_of, start)
        _draw_rates(rates, outcome, colour_of, start)
        _draw_marks(owners, rates, outcome, start)
        figure.suptitle(
            f"{timeline.total:,} flights in 8 queues: each aircraft's events are processed in "
            "order, whichever consumer owns its queue",
            fontsize=12,
            x=0.01,
            ha="left",
        )
        figure.savefig(path)


def _draw_owners(axes: Axes, outcome: Outcome, colour_of: Mapping[str, str], start: int) -> None:
    names = outcome.timeline.names
    queues = set()
    for holding in outcome.report.holdings:
        if holding.topic != TOPIC:
            continue
        queues.add(holding.queue)
        since, until = (holding.since_ns - start) / _NS, (holding.until_ns - start) / _NS
        axes.barh(
            holding.queue,
            until - since,
            left=since,
            height=0.78,
            color=colour_of[names[holding.client]],
            edgecolor="white",
            linewidth=0.6,
        )
    axes.set_yticks(sorted(queues), [f"queue {queue}" for queue in sorted(queues)])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.legend(
        handles=[
            *(Patch(color=colour, label=name) for name, colour in colour_of.items()),
            Patch(facecolor="white", edgecolor="#999999", label="no owner"),
        ],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        title="owner",
        alignment="left",
    )


def _draw_rates(axes: Axes, outcome: Outcome, colour_of: Mapping[str, str], start: int) -> None:
    written, stored = _rates(outcome, start)
    seconds = np.arange(len(stored)) * _STEP_S
    bottom = np.zeros(len(stored))
    for name, colour in colour_of.items():
        top = bottom + written.get(name, np.zeros(len(stored)))
        axes.fill_between(seconds, bottom, top, color=colour, step="post", linewidth=0)
        bottom = top
    axes.step(seconds, stored, where="post", color="black", linewidth=1, label="stored")
    axes.set_ylabel("flights per second")
    axes.set_xlabel("seconds since the first consumer joined")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _rates(outcome: Outcome, start: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return messages per second over time: written by each member, and stored."""
    counts: dict[str, dict[int, int]] = {}
    for t, _, event in Histories(outcome.timeline.histories):
        if event.get("topic") != TOPIC:
            continue
        # END counts the messages of a batch that succeeded, redelivered ones among them.
        if event["type"] == EventType.END:
            name, size = outcome.timeline.names[event["p"]], event["done"]
        elif event["type"] == EventType.STORE:
            name, size = "", len(event["offs"])
        else:
            continue
        steps = counts.setdefault(name, {})
        step = max(int((t - start) / _NS / _STEP_S), 0)
        steps[step] = steps.get(step, 0) + size
    # An empty step at the end brings the curves back to 0.
    length = 2 + max((step for steps in counts.values() for step in steps), default=0)
    rates = {name: np.zeros(length) for name in ["", *counts]}
    for name, steps in counts.items():
        for step, count in steps.items():
            rates[name][step] = count / _STEP_S
    return rates, rates.pop("")


def _draw_marks(owners: Axes, rates: Axes, outcome: Outcome, start: int) -> None:
    for at, text in _labels(outcome.timeline.marks, start):
        for axes in (owners, rates):
            axes.axvline(at, color="#333333", linewidth=0.9, linestyle=(0, (3, 2)))
        owners.annotate(
            text,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3),
            textcoords="offset points",
            fontsize=8,
            color="#333333",
        )


def _labels(marks: Sequence[Mark], start: int) -> list[tuple[float, str]]:
    """Return seconds and text of each mark."""
    # Without the first joins: they are all at the left edge, and their texts would overlap.
    labels: list[tuple[float, str]] = []
    for mark in marks:
        at = (mark.t - start) / _NS
        if mark.text == BROKER_BACK and labels:
            killed, text = labels[-1]
            labels[-1] = (killed, f"{text}, back {at - killed:.1f} s later")
        elif at > _FIRST_JOINS_S:
            labels.append((at, mark.text))
    return labels
