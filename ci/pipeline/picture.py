"""The picture: rows per second and lag per micro-batch, and the kill."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from scenario import Scenario

_RATE, _LAG = "#0072B2", "#D55E00"


def draw(scenario: Scenario, path: Path) -> None:
    """Write the PNG."""
    start = float(scenario.batches[0]["t"]) - _seconds_of(scenario.batches[0])
    ends = [float(line["t"]) - start for line in scenario.batches]
    widths = [_seconds_of(line) for line in scenario.batches]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 5), dpi=130, layout="constrained")
        rates, lags = figure.subplots(2, 1, sharex=True)
        rates.bar(
            [end - width for end, width in zip(ends, widths, strict=True)],
            [line["rows_per_second"] for line in scenario.batches],
            widths, align="edge", color=_RATE, edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        rates.set_ylabel("rows per second")
        lags.step([0.0, *ends], [scenario.total, *(line["lag"] for line in scenario.batches)],
                  where="post", color=_LAG)  # fmt: skip
        lags.set_ylabel("lag (messages)")
        lags.set_xlabel("seconds since the first micro-batch began")
        for axes in (rates, lags):
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
            f"{scenario.total:,} flights through Spark: rows per second and lag per micro-batch",
            fontsize=12, x=0.01, ha="left",
        )  # fmt: skip
        figure.savefig(path)


def _seconds_of(line: dict[str, float]) -> float:
    return line["rows"] / line["rows_per_second"] if line["rows_per_second"] else 0.0
