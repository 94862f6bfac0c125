"""The picture: changes committed by the shop and applied to its copy, and the faults between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from cdc_demo import Timeline

# Colours from the palette of Okabe and Ito, which colour-blind readers can distinguish, too.
_SHOP, _COPY, _LAG = "#0072B2", "#E69F00", "#D55E00"
_GREY = "#999999"


def draw(timeline: Timeline, path: Path) -> None:
    """Write the PNG."""
    times = [at for at, _, _ in timeline.samples]
    committed = [each for _, each, _ in timeline.samples]
    applied = [each for _, _, each in timeline.samples]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 6.4), dpi=130, layout="constrained")
        rows, lag = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.3, 1]})
        rows.plot(times, committed, color=_SHOP, label="committed in the shop")
        rows.plot(times, applied, color=_COPY, label="applied to the copy")
        rows.set_ylabel("changes")
        rows.legend(loc="upper left", frameon=False)
        behind = [ours - theirs for ours, theirs in zip(committed, applied, strict=True)]
        lag.fill_between(times, behind, color=_LAG, alpha=0.4, linewidth=0)
        lag.set_ylabel("changes behind")
        lag.set_xlabel("seconds")
        for axes in (rows, lag):
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            for at, _ in timeline.marks:
                axes.axvline(at, color=_GREY, linewidth=0.7, linestyle=":")
        for at, text in timeline.marks:
            lag.annotate(
                text, (at, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top",
                ha="right", fontsize=7, color="#555555",
            )  # fmt: skip
        figure.suptitle(
            f"{committed[-1]:,} changes of a shop: its copy equals it, whatever is killed",
            fontsize=12, x=0.01, ha="left",
        )  # fmt: skip
        figure.savefig(path)
