"""The pictures of the end-to-end results; needs the `report` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot


def draw(result: dict[str, Any], folder: Path) -> None:
    """Catch-up rates as bars, into `folder`."""
    names = list(result["rows"])
    rates = [row["messages_per_second"] / 1000 for row in result["rows"].values()]
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    bars = axes.barh(names[::-1], rates[::-1], color=["#2a6f97", "#2a6f97", "#9aa5b1"])
    axes.bar_label(bars, fmt="%.0f k", padding=4)
    axes.set_xlabel("thousand messages a second")
    axes.set_title("Catch-up on the embedded broker, one process", loc="left")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    target = folder / "catch_up.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
