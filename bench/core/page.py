"""The core's section of docs/benchmarks.md, and its picture; bench/report.py puts them in."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import workloads

_QUEUE = "Java ProcessQueue"
_LOCKS = "Java RebalanceLockManager"
_CODEC = "Java MessageDecoder"
_DEPTHS = {
    depth // workloads.CORE_BATCH * workloads.CORE_BATCH: f"{depth:,}"
    for depth in workloads.CORE_DEPTHS
}


@dataclass(frozen=True)
class Row:
    """One comparison: our case beside a peer's, or beside another case of ours.

    Args:
        at_least: how many times ours must be faster than the peer.
        at_most: how many times ours may take what the other case of ours takes; without
            one, the figure itself.
    """

    what: str
    work: str
    case: str
    peer: str = ""
    peer_case: str = ""
    at_least: float | None = None
    at_most: float | None = None


def rows() -> Iterator[Row]:
    """Every core row of the targets."""
    depth = {text: number for number, text in _DEPTHS.items()}
    for shape, by_depth in (
        ("objects", {"1,000": 4, "100,000": 7}),
        ("batches", {"1,000": 10, "100,000": 20}),
    ):
        for text, factor in by_depth.items():
            yield Row(
                f"process queue, {shape}, depth {text}",
                "process_queue",
                f"{shape}, depth {depth[text]}",
                _QUEUE,
                f"objects, depth {depth[text]}",
                at_least=factor,
            )
    for shape in ("objects", "batches", "columns"):
        yield Row(
            f"flatness, {shape}: depth 1,000,000 over 1,000",
            "process_queue",
            f"{shape}, depth {depth['1,000,000']}",
            "ordermq",
            f"{shape}, depth {depth['1,000']}",
            at_most=1.3,
        )
    for order in ("random", "sparse"):
        for size in (1_000, 100_000, 1_000_000):
            case = f"{order}, size {size}"
            for peer, factor in (("SortedDict", 10), ("LOBTree", 2)):
                yield Row(
                    f"offset map, {order}, {size:,}", "offset_map", case, peer, case,
                    at_least=factor,
                )  # fmt: skip
    for kind, factor in (("name", 3), ("message queue", 1)):
        for entries in (1_024, 1_000_000):
            case = f"batch 64, entries {entries}"
            yield Row(
                f"lock table, renew of 64 by {kind}, {entries:,} locks",
                "lock_table",
                f"{kind}, {case}",
                _LOCKS,
                case,
                at_least=factor,
            )
    for kind, text, factor in (("columns", "columns", 10), ("objects", "body, tags, keys", 1)):
        for body_bytes in workloads.CORE_CODEC_BODY_BYTES:
            case = f"32 x {body_bytes} bytes"
            yield Row(
                f"codec, {text}, {case}", "codec", f"{kind}, {case}", _CODEC, case,
                at_least=factor,
            )  # fmt: skip
    for shape in ("objects", "batches", "columns", "received"):
        yield Row(
            f"memory, {shape}, bytes a message", "memory", f"{shape}, bytes a message", at_most=24
        )


def line(result: dict[str, Any], row: Row) -> list[str]:
    """A row of the table; a peer that did not run has no figure and meets nothing."""
    ours = figure(result, row.work, "ordermq", row.case)
    others = figure(result, row.work, row.peer, row.peer_case)
    if not ours or (row.peer and not others):
        wanted = f">= {row.at_least:g}x" if row.at_least is not None else f"<= {row.at_most:g}"
        return [row.what, "-", row.peer, "-", "-", wanted, "not measured"]
    median = f"{statistics.median(ours):.1f}"
    if not row.peer:
        assert row.at_most is not None
        met = statistics.median(ours) <= row.at_most
        return [row.what, median, "", "", "", f"<= {row.at_most:g}", answer(met)]
    beside = f"{statistics.median(others):.1f}"
    if row.at_most is not None:
        ratio = statistics.median(a / b for a, b in zip(ours, others, strict=True))
        target, met = f"<= {row.at_most:g}x", ratio <= row.at_most
    else:
        assert row.at_least is not None
        ratio = statistics.median(b / a for a, b in zip(ours, others, strict=True))
        target, met = f">= {row.at_least:g}x", ratio >= row.at_least
    return [row.what, median, row.peer, beside, f"{ratio:.2f}x", target, answer(met)]


def figure(result: dict[str, Any], work: str, peer: str, case: str) -> list[float]:
    """The rounds' figures of one case; empty if it was not measured."""
    found: list[float] = result["samples"].get(work, {}).get(peer, {}).get(case, [])
    return found


def answer(met: bool) -> str:
    return "yes" if met else "**no**"


HEAD = ["what", "ours, ns", "beside", "its ns", "ratio", "target", "met"]


def text(result: dict[str, Any]) -> str:
    """What was measured, and how, in words."""
    ours = result["versions"]["ordermq"]
    peers = ", ".join(
        f"{peer} ({', '.join(f'{name} {number}' for name, number in detail.items())})"
        for peer, detail in result["versions"].items()
        if peer != "ordermq"
    )
    said = (
        f"Nanoseconds an item, medians of {result['rounds']} rounds in which ours and the peers "
        "take turns, each a process of its own; a ratio is the median of the rounds' own. The "
        "process queue puts 32, takes 32 and commits over a standing depth, with messages made "
        "ahead; the offset map gets one key and loses one, of neighbouring offsets (random) or "
        "of offsets far apart (sparse); the lock table's member renews 64 queues, by names made "
        "ahead (the interface takes no ids) or by `MessageQueue` objects; the codec reads the "
        f"columns {', '.join(f'`{name}`' for name in ours['columns'])}, or body, tags and keys "
        "of each message as Python objects, and Java decodes the same bytes. Memory is what a "
        "million messages add to the process: of the queue alone by shape, and for received "
        "batches of 32 with the batch and its columns.\n\n"
        "Not the same at every depth: the batches that fill a queue are freed as they are "
        "committed, those put while the clock runs are not. At depth 1,000 and 10,000 nearly "
        "all that is committed is of the second kind, at 100,000 most and at 1,000,000 all of "
        "the first, so the figures of batches there hold a deallocation that the others do "
        f"not.\n\nPeers: {peers}.\n"
    )
    for peer, reason in result["missing"].items():
        said += f"\n**Without {peer}: {reason}.**\n"
    return said


def depth_points(result: dict[str, Any], peer: str, shape: str) -> tuple[list[int], list[float]]:
    """Depths and medians of one line of the picture."""
    cases = result["medians"]["process_queue"].get(peer, {})
    found = [
        (depth, cases[f"{shape}, depth {depth}"])
        for depth in _DEPTHS
        if depth and f"{shape}, depth {depth}" in cases
    ]
    return [depth for depth, _ in found], [value for _, value in found]


def draw(result: dict[str, Any], folder: Path) -> None:
    """Time against depth, log axes: core_depth.png. Needs the `report` extra."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for peer, shape, label, color in (
        (_QUEUE, "objects", "Java ProcessQueue", "#9aa5b1"),
        ("ordermq", "objects", "ordermq, objects", "#e07a5f"),
        ("ordermq", "columns", "ordermq, columns", "#81b29a"),
        ("ordermq", "batches", "ordermq, batches", "#2a6f97"),
    ):
        depths, values = depth_points(result, peer, shape)
        if depths:
            axes.loglog(depths, values, marker="o", color=color, label=label)
    axes.set_xlabel("messages buffered")
    axes.set_ylabel("ns a message")
    axes.set_title("Process queue: put 32, take 32, commit", loc="left")
    ticks = [5, 10, 20, 50, 100, 200]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(5, 300)
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "core_depth.png", dpi=120, metadata={"Software": None})
    pyplot.close(figure)
