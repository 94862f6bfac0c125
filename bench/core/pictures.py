"""The core's pictures: time by depth, size and entries, on log axes. Needs `report`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator

from bench.core.page import PICTURES
from bench.end_to_end.pictures import head

_OURS = ("#1b4965", "#e07a5f", "#3d9970", "#b5838d")
_PEERS = ("#6c757d", "#adb5bd", "#d4a373")
Line = tuple[str, str, str, str]  # peer, case without its number, label, colour


LINES: dict[str, list[Line]] = {
    "process_queue": [
        ("pyrocketmq ProcessQueue", "objects, depth {}", "pyrocketmq", _PEERS[2]),
        ("Java ProcessQueue", "objects, depth {}", "Java ProcessQueue", _PEERS[0]),
        ("ordermq", "objects, depth {}", "ordermq, objects", _OURS[1]),
        ("ordermq", "columns, depth {}", "ordermq, columns", _OURS[2]),
        ("ordermq", "received, depth {}", "ordermq, received", _OURS[3]),
        ("ordermq", "batches, depth {}", "ordermq, batches", _OURS[0]),
    ],
    "offset_map": [
        ("SortedDict", "random, size {}", "SortedDict", _PEERS[1]),
        ("LOBTree", "random, size {}", "LOBTree", _PEERS[2]),
        ("Java TreeMap", "random, size {}", "Java TreeMap", _PEERS[0]),
        ("ordermq", "random, size {}", "ordermq, 1 key per call", _OURS[1]),
        ("ordermq", "random by block, size {}", "ordermq, 256 keys per call", _OURS[0]),
    ],
    "lock_table": [
        ("Java RebalanceLockManager", "batch 64, entries {}", "Java", _PEERS[0]),
        ("ordermq", "message queue, batch 64, entries {}", "ordermq, queues", _OURS[1]),
        ("ordermq", "name, batch 64, entries {}", "ordermq, strings", _OURS[2]),
        ("ordermq", "id, batch 64, entries {}", "ordermq, ids", _OURS[0]),
    ],
    "lane_map": [
        ("ordermq", "objects, {} keys, 32 in flight", "objects, 32 in flight", _OURS[1]),
        ("ordermq", "columns, {} keys, 32 in flight", "columns, 32 in flight", _OURS[0]),
        ("ordermq", "columns, {} keys, 1024 in flight", "columns, 1,024 in flight", _OURS[2]),
        ("ordermq", "drain, {} keys", "one message per key: take, done", _PEERS[0]),
        ("ordermq", "fill, {} keys", "one message per key: add", _PEERS[2]),
    ],
}
WORDS = {  # title, along, up
    "process_queue": (
        "Process queue: put 32, take 32, commit", "messages buffered", "ns per message"
    ),
    "offset_map": (
        "Offset map: add a random key, remove another", "entries", "ns per pair of keys"
    ),
    "lock_table": ("Lock table: renew 64 queues per call", "locks held", "ns per queue"),
    "lane_map": ("Lane map: add, take, done", "keys", "ns per message"),
}  # fmt: skip


def draw(result: dict[str, Any], folder: Path) -> None:
    """Write every picture of page.PICTURES whose work was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for work, (file, _) in PICTURES.items():
        if work in result["medians"]:
            load = f"CPU time of one thread, median of {result['rounds']} rounds"
            picture(result["medians"][work], LINES[work], folder / file, *WORDS[work], load)


def picture(
    medians: dict[str, dict[str, float]],
    lines: list[Line],
    target: Path,
    title: str,
    along: str,
    up: str,
    load: str,
) -> None:
    """Draw one picture; a line that was not measured is left out."""
    figure, axes = pyplot.subplots(figsize=(7, 4.3), layout="constrained")
    for peer, case, label, color in lines:
        found = points(medians.get(peer, {}), case)
        if found:
            sizes, values = zip(*found, strict=True)
            axes.loglog(sizes, values, marker="o", markersize=4, color=color, label=label)
    axes.set_xlabel(along)
    axes.set_ylabel(up)
    head(figure, title, load)
    axes.minorticks_off()
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def points(cases: dict[str, float], case: str) -> list[tuple[int, float]]:
    """Return (number, median) of the cases that differ in their number only, without zero."""
    pattern = re.compile(re.escape(case).replace(r"\{\}", r"(\d+)"))
    found = ((pattern.fullmatch(name), value) for name, value in cases.items())
    numbered = [(int(match[1]), value) for match, value in found if match]
    return sorted((number, value) for number, value in numbered if number)
