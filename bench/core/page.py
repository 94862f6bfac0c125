"""The core's sections of docs/benchmarks.md; bench/report.py puts them in."""

from __future__ import annotations

import statistics
from typing import Any

from bench.core.targets import Row, rows
from bench.markdown import source_line, table, verdict

PICTURES = {  # by work; drawn by pictures.py
    "process_queue": ("core_depth.png", "time against depth"),
    "offset_map": ("core_map.png", "time against size"),
    "lock_table": ("core_locks.png", "time against locks"),
    "lane_map": ("core_lanes.png", "time against keys"),
}
HEAD = ["what", "ours, ns", "beside", "its ns", "ratio", "target", "met"]


def lines(result: dict[str, Any]) -> list[list[str]]:
    """The table of every comparison."""
    reasons = misses(result)
    return [line(result, row, reasons) for row in rows()]


def line(result: dict[str, Any], row: Row, reasons: list[str]) -> list[str]:
    """A row of the table; a peer that did not run has no figure and meets nothing."""
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
    """The rounds' figures of one case; empty if it was not measured."""
    found: list[float] = result["samples"].get(work, {}).get(peer, {}).get(case, [])
    return found


def ratio_of(result: dict[str, Any], row: Row) -> float | None:
    """The median of the rounds' ratios, or what is held against a plain figure."""
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
    """Whether the target is met; None if it was not measured or there is none."""
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
    """The explanations of the rows that miss, each once; the table refers to them by number."""
    found = dict.fromkeys(row.why for row in rows() if row.why and met(result, row) is False)
    return list(found)


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
        "ahead: objects as Java's, batches whose columns are there, or received ones, which keep "
        "their bytes and no columns; the offset map gets one key and loses one, of neighbouring "
        "offsets (random) or of offsets far apart (sparse), or 256 of each by the widest calls "
        "a library has; the lock table's member renews 64 queues; the codec reads the "
        f"columns {', '.join(f'`{name}`' for name in ours['columns'])}, or body, tags and keys "
        "of each message as Python objects, and Java decodes the same bytes. Memory is what "
        "that many messages add to the process: of the queue alone by shape, and for received "
        "batches of 32 with the batch and its columns.\n\n"
    )
    said += "".join(f"{sentence}\n\n" for sentence in result.get("conditions", ()))
    said += f"Peers: {peers}.\n"
    for peer, reason in result["missing"].items():
        said += f"\n**Without {peer}: {reason}.**\n"
    return said


# The matrix: every operation of ours.

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
    """Operations against depth, 32 messages a call."""
    depths = numbers(result, -1)
    return (
        ["32 messages a call", *(f"{depth:,}" for depth in depths)],
        operations(result, [f"32-{depth}" for depth in depths]),
    )


def batch_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Operations against messages a call, at the second depth (a thousand)."""
    batches, depth = numbers(result, -2), numbers(result, -1)[1]
    return (
        [f"depth {depth:,}", *(f"{batch:,} a call" for batch in batches)],
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
    """What stands at that place in the names of the process queue's cases, ascending."""
    cases = (case.split("-") for case in result["medians"]["cython"])
    return sorted({int(parts[place]) for parts in cases if parts[0] == "process_queue"})


def cffi_factor(result: dict[str, Any]) -> float:
    """What cffi takes over Cython, in the middle of all cases."""
    cython: dict[str, float] = result["medians"]["cython"]
    cffi: dict[str, float] = result["medians"]["cffi"]
    return statistics.median(cffi[case] / cython[case] for case in cython)


def core_section(result: dict[str, Any]) -> str:
    """Ours beside the peers."""
    said = "## The core beside its peers\n\n" + text(result) + "\n" + table(HEAD, lines(result))
    reasons = misses(result)
    if reasons:
        said += "\nWhere the time of what misses goes, and what is next:\n\n"
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
    """Every operation of ours."""
    return (
        "## The core alone: every operation of the process queue\n\n"
        "Nanoseconds of processor time a message on Cython, medians; the queue is brought back "
        "to its depth before each timing. Through cffi the same takes "
        f"{cffi_factor(result):.1f} times as long in the middle of all cases. The "
        "offset map, the codec and every other size: `bench/results/core_matrix.json`.\n\n"
        + table(*depth_table(result))
        + "\n"
        + table(*batch_table(result))
        + source_line(result)
    )


SECTIONS = {"core": core_section, "core_matrix": core_matrix_section}
