"""The pictures of the Spark results; needs the `report` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot

from bench.end_to_end.pictures import head
from ordermq.cli.output import counted

_LINES = {
    "jvm": ("JVM", "#9aa5b1"),
    "workers": ("Python workers of the executors, total", "#2a6f97"),
    "largest_worker": ("largest Python worker", "#61a5c2"),
    "source": ("driver half of the stream", "#D55E00"),
    "program": ("program", "#333333"),
}
_WAY_COLORS = ("#9aa5b1", "#2a6f97", "#61a5c2", "#D55E00", "#a9d6e5")
# One for each pair of a panel.
_PAIR_STYLES = (("#2a6f97", "o"), ("#D55E00", "s"))


def draw_memory(result: dict[str, Any], folder: Path) -> Path:
    """Draw memory and backlog by rows read into `folder`."""
    samples = result["samples"]
    millions = [one["rows"] / 1e6 for one in samples]
    figure, (memory, lag) = pyplot.subplots(
        2, 1, figsize=(8, 5.2), layout="constrained", sharex=True, height_ratios=(3, 1)
    )
    for name, (label, color) in _LINES.items():
        memory.plot(millions, [one[name] for one in samples], color=color, label=label, lw=1.3)
    memory.set_ylabel("resident memory in MiB")
    memory.set_ylim(bottom=0)
    memory.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    work = result["workload"]
    head(
        figure,
        "Memory and backlog of one query: source, ordered stage, sink",
        f"{work['rows']:,} messages of {work['body_bytes']} bytes, {work['keys']:,} keys, at most "
        f"{work['max_rows']:,} rows per micro-batch, JVM heap {work['jvm_memory']}",
    )
    lag.step(millions, [one["lag"] / 1e6 for one in samples], where="post", color="#D55E00")
    lag.set_ylabel("million rows\nbehind")
    lag.set_xlabel("million rows read")
    lag.set_ylim(bottom=0)
    for axes in (memory, lag):
        axes.spines[["top", "right"]].set_visible(False)
    target = folder / "spark_memory.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return target


def draw_growth(result: dict[str, Any], folder: Path) -> Path:
    """Draw the throughput relative to the baselines into `folder`."""
    axes = result["axes"]
    figure, panels = pyplot.subplots(
        1, len(axes), figsize=(11, 4), layout="constrained", sharey=True
    )
    for panel, (axis, lines) in zip(panels, axes.items(), strict=True):
        for (name, points), (color, mark) in zip(lines.items(), _PAIR_STYLES, strict=False):
            sizes = sorted(int(size) for size in points)  # kept by name: 16 before 2
            found = [points[str(size)] for size in sizes]
            medians = [point["ratio"] for point in found]
            least = [min(point["ratios"]) for point in found]
            most = [max(point["ratios"]) for point in found]
            panel.fill_between(sizes, least, most, color=color, alpha=0.15, lw=0)
            panel.plot(sizes, medians, color=color, marker=mark, ms=4, lw=1.3, label=name)
        panel.axhline(1, color="#9aa5b1", lw=0.8, ls=":")
        panel.set_xscale("log", base=2 if axis == "queues" else 10)
        sizes = sorted({int(size) for points in lines.values() for size in points})
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.minorticks_off()
        panel.set_xlabel(axis)
        panel.legend(frameon=False, fontsize=7, loc="lower left")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("throughput relative to baseline")
    head(
        figure,
        "Throughput of the bridge relative to the same work in Spark alone",
        f"{result['workload']['rows']:,} rows, median of {result['workload']['rounds']} rounds; "
        "bands from the least to the most",
    )
    panels[0].set_ylim(bottom=0)  # once all lines are drawn: it ends the scaling
    target = folder / "spark_growth.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return target


def draw_kafka(result: dict[str, Any], folder: Path) -> Path:
    """Draw throughput and CPU of ordermq and of Kafka's connector into `folder`."""
    works = result["works"]
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    # Only the sink has some, which read nothing.
    ways = max((list(each) for work, each in works.items() if work != "sink"), key=len)
    height = 0.8 / len(ways)
    units = {"krows_per_second": "thousand rows per second", "cpu_us_per_row": "CPU us per row"}
    for panel, (unit, label) in zip(panels, units.items(), strict=True):
        for number, (way, color) in enumerate(zip(ways, _WAY_COLORS, strict=False)):
            places = [row + number * height for row in range(len(works))]
            values = [work.get(way, {}).get(unit, 0) for work in works.values()]
            panel.barh(places, values, height, color=color, label=way)
        middle = (len(ways) - 1) / 2 * height
        panel.set_yticks([row + middle for row in range(len(works))], list(works))
        panel.invert_yaxis()
        panel.set_xlabel(label)
        panel.spines[["top", "right"]].set_visible(False)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    work = result["workload"]
    head(
        figure,
        "Spark: ordermq and Kafka's connector",
        f"{work['rows']:,} messages of {work['body_bytes']} bytes, {work['queues']} queues, "
        f"alternated, {counted(work['rounds'], 'round')}",
    )
    target = folder / "spark_kafka.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return target
