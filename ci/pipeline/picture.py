"""The picture: rows a second and lag, micro-batch by micro-batch, and the kill between them."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from course import Course
from matplotlib.figure import Figure

_RATE, _LAG = "#0072B2", "#D55E00"


def draw(course: Course, path: Path) -> None:
    """Write the PNG."""
    start = float(course.batches[0]["t"]) - _seconds_of(course.batches[0])
    ends = [float(line["t"]) - start for line in course.batches]
    widths = [_seconds_of(line) for line in course.batches]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 5), dpi=130, layout="constrained")
        rates, lags = figure.subplots(2, 1, sharex=True)
        rates.bar(
            [end - width for end, width in zip(ends, widths, strict=True)],
            [line["rows_per_second"] for line in course.batches],
            widths, align="edge", color=_RATE, edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        rates.set_ylabel("rows a second")
        lags.step([0.0, *ends], [course.total, *(line["lag"] for line in course.batches)],
                  where="post", color=_LAG)  # fmt: skip
        lags.set_ylabel("messages behind")
        lags.set_xlabel("seconds since the first micro-batch began")
        for axes in (rates, lags):
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            axes.axvline(course.killed_t - start, color="#333333", lw=0.9, ls=(0, (3, 2)))
        rates.annotate(
            f"driver killed (-9), next micro-batch done {course.back_t - course.killed_t:.0f} s "
            "later",
            (course.killed_t - start, 1.0), xycoords=("data", "axes fraction"), xytext=(3, 3),
            textcoords="offset points", fontsize=8, color="#333333",
        )  # fmt: skip
        figure.suptitle(
            f"{course.total:,} flights through Spark, each micro-batch's rows and what waits",
            fontsize=12, x=0.01, ha="left",
        )  # fmt: skip
        figure.savefig(path)


def _seconds_of(line: dict[str, float]) -> float:
    return line["rows"] / line["rows_per_second"] if line["rows_per_second"] else 0.0
