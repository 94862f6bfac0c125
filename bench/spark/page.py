"""The tables of the Spark bridge."""

from __future__ import annotations

from typing import Any

from bench.markdown import source_line, table, verdict

# At least so much of the floor's rate (spark.md, targets).
TARGETS = {
    "read from memory, six columns": 0.5,
    "batch function": 0.8,
    "Python loop over each message": 0.8,
    "stream sink": 0.5,
}
KEYED_TARGETS = {"sort by hand, mapInArrow": 0.9, "sort, groupBy.applyInArrow": 1.15}


def section(result: dict[str, Any]) -> str:
    work, versions = result["workload"], result["versions"]
    lines = []
    for part in ("sources", "stages", "sinks"):
        for name, row in result.get(part, {}).items():  # an older result has no sources
            lines.append(line(name, row["floor"], row, TARGETS.get(name)))
    for name, row in result["keyed"].items():
        keys, _, floor = name.partition(", ")
        lines.append(line(f"stage by key, {keys}", floor, row, KEYED_TARGETS.get(floor)))
    return (
        "## The Spark bridge beside Spark alone\n\n"
        f"{work['rows']:,} rows with bodies of {work['body_bytes']} bytes in two partitions, "
        "cached in the JVM (the sink: read from memory); ours and the floor in turns in one "
        f"process, {work['rounds']} rounds, ratios are medians of the rounds' own. The floor "
        "does the same work without order, check, fence or stamps, but where it says so. "
        f"PySpark {versions['pyspark']}, PyArrow {versions['pyarrow']}.\n\n"
        + table(["what", "floor", "ours, krow/s", "the floor's", "ratio", "target", "met"], lines)
        + source_line(result)
    )


def line(name: str, floor: str, row: dict[str, Any], target: float | None) -> list[str]:
    return [
        name,
        floor,
        f"{row['ours_krows_per_second']:,}",
        f"{row['floor_krows_per_second']:,}",
        f"{row['ratio']:.2f}",
        "" if target is None else f">= {target}",
        "" if target is None else verdict(row["ratio"] >= target),
    ]


SECTIONS = {"spark": section}
