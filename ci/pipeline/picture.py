"""The picture: rows per second per micro-batch, the lag in messages and seconds, and the kill."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from scenario import Scenario

_RATE, _LAG, _AGE = "#0072B2", "#D55E00", "#009E73"
_GAP_S = 2.0  # without a measurement: the driver is gone, and the line ends


def draw(scenario: Scenario, path: Path) -> None:
    """Write the PNG."""
    start = float(scenario.batches[0]["t"]) - _seconds_of(scenario.batches[0])
    ends = [float(line["t"]) - start for line in scenario.batches]
    widths = [_seconds_of(line) for line in scenario.batches]
    measured = _measured(scenario, start)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6.5), dpi=130, layout="constrained")
        rates, lags, ages = figure.subplots(3, 1, sharex=True)
        rates.bar(
            [end - width for end, width in zip(ends, widths, strict=True)],
            [line["rows_per_second"] for line in scenario.batches],
            widths, align="edge", color=_RATE, edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        rates.set_ylabel("rows per second")
        lags.step([t - start for t, _, _ in measured], [messages for _, messages, _ in measured],
                  where="post", color=_LAG)  # fmt: skip
        lags.set_ylabel("lag (messages)")
        for part in _without_gaps(measured):
            ages.plot([t - start for t, _ in part], [age for _, age in part], color=_AGE)
        ages.set_ylabel("lag (seconds)")
        ages.set_xlabel("seconds since the first micro-batch began")
        for axes in (rates, lags, ages):
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            axes.axvline(scenario.killed_t - start, color="#333333", lw=0.9, ls=(0, (3, 2)))
        rates.annotate(
            "driver killed (-9), next micro-batch done "
            f"{scenario.back_t - scenario.killed_t:.0f} s later",
            (scenario.killed_t - start, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 3),
            textcoords="offset points", fontsize=8, color="#333333",
        )  # fmt: skip
        figure.suptitle(
            f"{scenario.total:,} flights through Spark: rows per second and lag",
            fontsize=12, x=0.01, ha="left",
        )  # fmt: skip
        figure.savefig(path)


def _measured(scenario: Scenario, start: float) -> list[tuple[float, int, float | None]]:
    """Return times, lags in messages and in seconds, the latter None where it is not known.

    A query that has ended, or whose driver was killed, is measured no more: the micro-batches tell
    its last lag.
    """
    lines = [(line["t"], line["messages"], line["seconds"]) for line in scenario.lags]
    lines += [
        (line["t"], line["lag"], None if line["lag"] else 0.0)
        for line in scenario.batches
        if not any(0.0 <= lag["t"] - line["t"] < _GAP_S for lag in scenario.lags)
    ]
    # Before its first report Spark has not read anything.
    return [(start, scenario.total, None), *sorted(lines, key=lambda line: line[0])]


def _without_gaps(
    measured: list[tuple[float, int, float | None]],
) -> list[list[tuple[float, float]]]:
    """Return times and lags in seconds, in parts."""
    parts: list[list[tuple[float, float]]] = []
    for t, _, age in measured:
        if age is None:
            continue
        if not parts or t - parts[-1][-1][0] > _GAP_S:
            parts.append([])
        parts[-1].append((t, age))
    return parts


def _seconds_of(line: dict[str, float]) -> float:
    return line["rows"] / line["rows_per_second"] if line["rows_per_second"] else 0.0
