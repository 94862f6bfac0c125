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
        + bounds(result["keyed"])
        + source_line(result)
    )


def bounds(keyed: dict[str, Any]) -> str:
    """How much faster than applyInArrow a stage by key can be at all."""
    by_hand, grouped = KEYED_TARGETS
    told = []
    for name, row in keyed.items():
        keys, _, floor = name.partition(", ")
        if floor == grouped:
            most = keyed[f"{keys}, {by_hand}"]["floor_krows_per_second"]
            told.append(f"{most / row['floor_krows_per_second']:.2f} times at {keys}")
    return (
        "\nA stage by key sorts and calls as the sort by hand does, so it can be no faster than "
        f"that; and that alone was {' and '.join(told)} as fast as applyInArrow in this run.\n"
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


PROCESSES = {
    "source": "the stream's driver half, a Python process",
    "workers": "executors' Python workers, together",
    "largest_worker": "the largest of them",
    "program": "the program that started the query",
    "jvm": "the JVM, driver and executors in one",
    "heap": "its heap in use, garbage included",
    "broker": "the embedded broker, beside them",
}
MOST_GROWTH = 1.1  # late beside early


def memory(result: dict[str, Any]) -> str:
    work = result["workload"]
    lines = []
    for name, label in PROCESSES.items():
        row = result["memory"][name]
        growth = row["late_mib"] / row["early_mib"]
        is_ours = name in ("source", "workers", "largest_worker", "jvm")
        lines.append([
            label,
            f"{row['early_mib']:,.0f}",
            f"{row['late_mib']:,.0f}",
            f"{row['most_mib']:,.0f}",
            f"{row['mib_a_million_rows']:+.1f}",
            f"<= {MOST_GROWTH} times" if is_ours else "",
            verdict(growth <= MOST_GROWTH) if is_ours else "",
        ])  # fmt: skip
    return (
        "## Memory of a Spark query\n\n"
        f"{work['rows']:,} messages of {work['body_bytes']} bytes from one topic through an "
        f"ordered stage to another, in one query of {result['micro_batches']} micro-batches under "
        f"the broker's locks: {result['rows_per_second']:,} rows a second with the broker's work "
        f"on the same machine, {result['last_lag']} messages behind at its end. MiB resident; "
        f"early and late are medians of 20 to 40 and of 80 to 100 per cent of the rows; JVM "
        f"started with `-Xmx{work['jvm_memory']}`.\n\n"
        + table(
            ["what", "early", "late", "most", "a million rows", "target, late by early", "met"],
            lines,
        )
        + "\n![memory by rows read](pictures/spark_memory.png)\n"
        + source_line(result)
    )


def growth(result: dict[str, Any]) -> str:
    work, tables = result["workload"], []
    for axis, lines in result["axes"].items():
        rows = [
            [name, size, f"{point['ours_krows_per_second']:,}",
             f"{point['floor_krows_per_second']:,}", f"{point['ratio']:.2f}"]
            for name, points in lines.items()
            for size, point in sorted(points.items(), key=lambda item: int(item[0]))
        ]  # fmt: skip
        tables.append(table(["what", axis, "ours, krow/s", "the floor's", "ratio"], rows))
    return (
        "## How the Spark bridge grows\n\n"
        f"{work['rows']:,} rows in each run, ours and the floor in turns in one process, "
        f"{work['rounds']} rounds; a ratio is the median of the rounds' own, the bands are least "
        "and most. Every queue is a partition: the floor pays for the tasks too. Reads have six "
        "columns; a stage reads rows cached in the JVM.\n\n"
        "![ratios by queues, keys and batch sizes](pictures/spark_growth.png)\n\n"
        + "\n".join(tables)
        + source_line(result)
    )


MOST_DRIVER_MS = 10  # a micro-batch, spark.md


def driver(result: dict[str, Any]) -> str:
    work, row = result["workload"], result["row"]
    is_met = row["batch_median_ms"] <= MOST_DRIVER_MS
    return (
        "## What our driver methods add to a micro-batch\n\n"
        f"The calls of one batch (latestOffset, reportLatestOffset, commit, partitions) of an "
        f"ordered query over {work['queues']} queues, with their locks held and the broker a "
        f"process of its own; {work['batches']} batches. Spark's own part is some 150 ms.\n\n"
        + table(
            ["what", "ms", "target", "met"],
            [
                ["first call: connect, lock, read offsets", f"{row['first_ms']:.1f}", "", ""],
                ["a batch, median", f"{row['batch_median_ms']:.2f}", f"<= {MOST_DRIVER_MS}",
                 verdict(is_met)],
                ["a batch, 99 of 100", f"{row['batch_p99_ms']:.2f}", "", ""],
                ["stop: wait, commit, unlock", f"{row['close_ms']:.1f}", "", ""],
            ],
        )
        + source_line(result)
    )  # fmt: skip


SECTIONS = {
    "spark": section,
    "spark_driver": driver,
    "spark_growth": growth,
    "spark_memory": memory,
}
