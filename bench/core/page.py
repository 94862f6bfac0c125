"""The core's sections of docs/benchmarks.md; bench/report.py puts them in."""

from __future__ import annotations

import statistics
from typing import Any

from bench.core.targets import Row, rows
from bench.markdown import source_line, table, verdict

PICTURES = {  # by work; drawn by pictures.py
    "process_queue": ("core_depth.png", "process queue: time per message by depth"),
    "offset_map": ("core_map.png", "offset map: time per pair of keys by size"),
    "lock_table": ("core_locks.png", "lock table: time per queue by number of locks"),
    "lane_map": ("core_lanes.png", "lane map: time per message by number of keys"),
}
HEAD = ["operation", "ordermq, ns", "compared with", "its ns", "ratio", "target", "met"]


def lines(result: dict[str, Any]) -> list[list[str]]:
    """Return the table of every comparison."""
    reasons = misses(result)
    return [line(result, row, reasons) for row in rows()]


def line(result: dict[str, Any], row: Row, reasons: list[str]) -> list[str]:
    """Return a row of the table; without a figure of the peer no target is met."""
    ours = figure(result, row.work, "ordermq", row.case)
    others = figure(result, row.work, row.peer, row.peer_case)
    ratio, said = ratio_of(result, row), answer(met(result, row), row)
    if row.why in reasons and met(result, row) is False:
        said += f" [{reasons.index(row.why) + 1}]"
    return [
        row.what,
        f"{statistics.median(ours):.1f}" if ours else "-",
        row.peer,
        f"{statistics.median(others):,.1f}" if others else "-" if row.peer else "",
        f"{ratio:.2f}x" if ratio is not None and row.peer else "",
        row.target,
        said,
    ]


def figure(result: dict[str, Any], work: str, peer: str, case: str) -> list[float]:
    """Return the figures of one case, one per round; [] if it was not measured."""
    found: list[float] = result["samples"].get(work, {}).get(peer, {}).get(case, [])
    return found


def ratio_of(result: dict[str, Any], row: Row) -> float | None:
    """Return the median of the rounds' ratios; without a peer the figure itself."""
    ours = figure(result, row.work, "ordermq", row.case)
    if not row.peer:
        return statistics.median(ours) if ours else None
    others = figure(result, row.work, row.peer, row.peer_case)
    if not ours or not others:
        return None
    if row.at_most is not None:
        return statistics.median(a / b for a, b in zip(ours, others, strict=True))
    return statistics.median(b / a for a, b in zip(ours, others, strict=True))


def met(result: dict[str, Any], row: Row) -> bool | None:
    """Return whether the target is met; None without a measurement or a target."""
    ratio = ratio_of(result, row)
    if ratio is None:
        return None
    if row.at_most is not None:
        return ratio <= row.at_most
    return ratio >= row.at_least if row.at_least is not None else None


def answer(met: bool | None, row: Row) -> str:
    if met is None:
        return "not measured" if row.target else ""
    return verdict(met)


def misses(result: dict[str, Any]) -> list[str]:
    """Return the analyses of missed targets, each once; the table refers to them by number."""
    found = dict.fromkeys(row.why for row in rows() if row.why and met(result, row) is False)
    return list(found)


def text(result: dict[str, Any]) -> str:
    """Describe the measurements in words."""
    ours = result["versions"]["ordermq"]
    peers = ", ".join(
        f"{peer} ({', '.join(f'{name} {number}' for name, number in detail.items())})"
        for peer, detail in result["versions"].items()
        if peer != "ordermq"
    )
    said = (
        f"Nanoseconds per item, medians of {result['rounds']} rounds. In each round ordermq and "
        "the peers take turns, each in a process of its own; a ratio is the median of the "
        "ratios per round.\n\n"
        "- **Process queue**: put 32 messages, take 32, commit, while a constant number (the "
        "depth) stays buffered. Messages are made before: objects as in Java; batches with "
        "columns; or received batches, which keep their bytes and have no columns yet.\n"
        "- **Offset map**: add a key and remove another one; keys are neighbouring offsets "
        "(random) or far apart (sparse). With 256 at a time each library uses its widest calls.\n"
        "- **Lock table**: one member renews 64 queues per call.\n"
        f"- **Codec**: read the columns {', '.join(f'`{name}`' for name in ours['columns'])}, or "
        "body, tags and keys of each message as Python objects; Java decodes the same bytes.\n"
        "- **Memory**: growth of the process per buffered message; for received batches of 32 "
        "with the batch and its columns.\n\n"
    )
    said += "".join(f"{sentence}\n\n" for sentence in result.get("conditions", ()))
    said += f"Peers: {peers}.\n"
    for peer, reason in result["missing"].items():
        said += f"\n**Without {peer}: {reason}.**\n"
    return said


# The matrix: every operation of ordermq alone.

_OPERATIONS = {
    "put": "put",
    "take": "take",
    "commit": "take and commit",
    "cycle": "put, take, commit",
    "rollback": "take and roll back",
    "remove": "remove, ascending",
    "remove_shuffled": "remove, shuffled",
}
_SHAPES = ("objects", "batches", "received", "columns")


def depth_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of operations by depth, 32 messages per call."""
    depths = numbers(result, -1)
    return (
        ["32 messages per call", *(f"{depth:,}" for depth in depths)],
        operations(result, [f"32-{depth}" for depth in depths]),
    )


def batch_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the table of operations by messages per call, at the second depth (a thousand)."""
    batches, depth = numbers(result, -2), numbers(result, -1)[1]
    return (
        [f"depth {depth:,}", *(f"{batch:,} per call" for batch in batches)],
        operations(result, [f"{batch}-{depth}" for batch in batches]),
    )


def operations(result: dict[str, Any], ends: list[str]) -> list[list[str]]:
    cython = result["medians"]["cython"]
    return [
        [
            f"{shape}, {said}",
            *(f"{cython[f'process_queue-{shape}-{name}-{end}']:.1f}" for end in ends),
        ]
        for shape in _SHAPES
        for name, said in _OPERATIONS.items()
        if f"process_queue-{shape}-{name}-{ends[0]}" in cython
    ]


def numbers(result: dict[str, Any], place: int) -> list[int]:
    """Return the numbers at one place in the names of the process queue's cases, ascending."""
    cases = (case.split("-") for case in result["medians"]["cython"])
    return sorted({int(parts[place]) for parts in cases if parts[0] == "process_queue"})


def cffi_factor(result: dict[str, Any]) -> float:
    """Return the time through cffi relative to Cython, median of all cases."""
    cython: dict[str, float] = result["medians"]["cython"]
    cffi: dict[str, float] = result["medians"]["cffi"]
    # The native consume loop has cases on Cython alone.
    return statistics.median(cffi[case] / cython[case] for case in cython if case in cffi)


def core_section(result: dict[str, Any]) -> str:
    """Return the section that compares the core with its peers."""
    said = (
        "## The core compared with its peers\n\n" + text(result) + "\n" + table(HEAD, lines(result))
    )
    reasons = misses(result)
    if reasons:
        said += "\n### Analysis of missed targets\n\n"
        said += "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1))
    return (
        said
        + source_line(result)
        + "".join(
            f"\n![{said}](pictures/{file})\n"
            for work, (file, said) in PICTURES.items()
            if work in result["medians"]
        )
    )


def core_matrix_section(result: dict[str, Any]) -> str:
    """Return the section with every operation of the process queue."""
    return (
        "## The core alone: every operation of the process queue\n\n"
        "Nanoseconds of processor time per message on Cython, medians; the queue is brought back "
        "to its depth before each timing. Through cffi an operation takes "
        f"{cffi_factor(result):.1f} times as long (median of all cases). The offset map, the codec "
        "and every other size: `bench/results/core_matrix.json`.\n\n"
        "The same command times the consume loop and the frame path (an answer to a pull, from its "
        "bytes to the process queue) and the send path (messages to requests, answers to "
        "receipts), so that a slower commit is seen; without all the rest: "
        '`python -m bench.core.matrix -k "consume_loop or frame_path or send_path"`.\n\n'
        + table(*depth_table(result))
        + "\n"
        + table(*batch_table(result))
        + source_line(result)
    )


def call_cost_section(result: dict[str, Any]) -> str:
    row = result["rows"]
    return (
        "## The consume loop: a call and a pass\n\n"
        "Nanoseconds of one thread, by passes over 32 and over 256 buffered messages in batches of "
        "one: the cost of a call of an empty listener, and what a pass adds to that of its calls. "
        f"Medians of {result['rounds']} runs.\n\n"
        + table(["call, ns", "pass, ns"], [[f"{row['call_ns']:,}", f"{row['pass_ns']:,}"]])
        + source_line(result)
    )


SECTIONS = {
    "core": core_section,
    "core_matrix": core_matrix_section,
    "call_cost": call_cost_section,
}
