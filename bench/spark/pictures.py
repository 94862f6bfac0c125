"""The pictures of the Spark results; needs the `report` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot

_LINES = {
    "jvm": ("JVM", "#9aa5b1"),
    "workers": ("executors' Python workers, together", "#2a6f97"),
    "largest_worker": ("the largest of them", "#61a5c2"),
    "source": ("the stream's driver half", "#D55E00"),
    "program": ("the program", "#333333"),
}


def draw_memory(result: dict[str, Any], folder: Path) -> Path:
    """Memory by rows read, and what waits behind, into `folder`."""
    samples = result["samples"]
    millions = [one["rows"] / 1e6 for one in samples]
    figure, (memory, lag) = pyplot.subplots(
        2, 1, figsize=(8, 5), layout="constrained", sharex=True, height_ratios=(3, 1)
    )
    for name, (label, color) in _LINES.items():
        memory.plot(millions, [one[name] for one in samples], color=color, label=label, lw=1.3)
    memory.set_ylabel("MiB resident")
    memory.set_ylim(bottom=0)
    memory.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    memory.set_title(
        f"{result['workload']['rows']:,} messages: source, ordered stage, sink, one query",
        loc="left",
    )
    lag.step(millions, [one["lag"] / 1e6 for one in samples], where="post", color="#D55E00")
    lag.set_ylabel("millions behind")
    lag.set_xlabel("million rows read")
    lag.set_ylim(bottom=0)
    for axes in (memory, lag):
        axes.spines[["top", "right"]].set_visible(False)
    target = folder / "spark_memory.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return target
