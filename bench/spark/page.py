"""The tables of the Spark bridge."""

from __future__ import annotations

from typing import Any

from bench.markdown import source_line, table, verdict
from ordermq.cli.output import counted

# Minimum throughput relative to the baseline.
TARGETS = {
    "read from memory, six columns": 0.5,
    "batch function": 0.8,
    "Python loop over each message": 0.8,
    "stream sink": 0.5,
}
KEYED_TARGETS = {"explicit sort, mapInArrow": 0.9, "sort, groupBy.applyInArrow": 1.15}


def section(result: dict[str, Any]) -> str:
    work, versions = result["workload"], result["versions"]
    lines = []
    for part in ("sources", "stages", "sinks"):
        for name, row in result.get(part, {}).items():  # an older result has no sources
            lines.append(line(name, row["baseline"], row, TARGETS.get(name)))
    for name, row in result["keyed"].items():
        keys, _, baseline = name.partition(", ")
        lines.append(line(f"stage by key, {keys}", baseline, row, KEYED_TARGETS.get(baseline)))
    return (
        "## The Spark bridge compared with Spark alone\n\n"
        f"{work['rows']:,} rows with bodies of {work['body_bytes']} bytes in two partitions, "
        "cached in the JVM (the sink: read from memory); ordermq and baseline alternated in one "
        f"process, {work['rounds']} rounds; a ratio is the median of the rounds' ratios. The "
        "baseline does the same work without order, check, lease or stamps, unless it says so. "
        f"PySpark {versions['pyspark']}, PyArrow {versions['pyarrow']}.\n\n"
        + table(
            ["case", "baseline", "ordermq, krow/s", "baseline, krow/s", "ratio", "target", "met"],
            lines,
        )
        + bounds(result["keyed"])
        + source_line(result)
    )


def bounds(keyed: dict[str, Any]) -> str:
    """Return how much faster than applyInArrow a stage by key can be."""
    by_hand, grouped = KEYED_TARGETS
    factors = []
    for name, row in keyed.items():
        keys, _, baseline = name.partition(", ")
        if baseline == grouped:
            most = keyed[f"{keys}, {by_hand}"]["baseline_krows_per_second"]
            factors.append(f"{most / row['baseline_krows_per_second']:.2f} times at {keys}")
    return (
        "\nA stage by key sorts and calls like the explicit sort, so it cannot be faster. "
        f"The explicit sort was {' and '.join(factors)} as fast as applyInArrow in this run.\n"
    )


def line(name: str, baseline: str, row: dict[str, Any], target: float | None) -> list[str]:
    return [
        name,
        baseline,
        f"{row['ordermq_krows_per_second']:,}",
        f"{row['baseline_krows_per_second']:,}",
        f"{row['ratio']:.2f}",
        "" if target is None else f">= {target}",
        "" if target is None else verdict(row["ratio"] >= target),
    ]


PROCESSES = {
    "source": "driver half of the stream (a Python process)",
    "workers": "Python workers of the executors, total",
    "largest_worker": "largest Python worker",
    "program": "program that started the query",
    "jvm": "JVM (driver and executors)",
    "heap": "used heap of the JVM, garbage included",
    "broker": "embedded broker",
}
MOST_GROWTH = 1.1  # late relative to early


def memory(result: dict[str, Any]) -> str:
    work = result["workload"]
    lines = []
    for name, label in PROCESSES.items():
        row = result["memory"][name]
        growth = row["late_mib"] / row["early_mib"]
        has_target = name in ("source", "workers", "largest_worker", "jvm")
        lines.append([
            label,
            f"{row['early_mib']:,.0f}",
            f"{row['late_mib']:,.0f}",
            f"{row['most_mib']:,.0f}",
            f"{row['mib_per_million_rows']:+.1f}",
            f"<= {MOST_GROWTH} times" if has_target else "",
            verdict(growth <= MOST_GROWTH) if has_target else "",
        ])  # fmt: skip
    return (
        "## Memory of a Spark query\n\n"
        f"{work['rows']:,} messages of {work['body_bytes']} bytes from one topic through an "
        f"ordered stage to another, in one query of {result['micro_batches']} micro-batches under "
        f"the broker's locks: {result['rows_per_second']:,} rows per second with the broker "
        f"on the same machine, {result['last_lag']} messages behind at its end. Resident MiB; "
        f"early and late are medians of 20 to 40 and of 80 to 100 per cent of the rows; JVM "
        f"started with `-Xmx{work['jvm_memory']}`.\n\n"
        + table(
            [
                "process",
                "early",
                "late",
                "maximum",
                "per million rows",
                "target (late / early)",
                "met",
            ],
            lines,
        )
        + "\n![memory by rows read](pictures/spark_memory.png)\n"
        + source_line(result)
    )


def growth(result: dict[str, Any]) -> str:
    work, tables = result["workload"], []
    for axis, lines in result["axes"].items():
        rows = [
            [name, size, f"{point['ordermq_krows_per_second']:,}",
             f"{point['baseline_krows_per_second']:,}", f"{point['ratio']:.2f}"]
            for name, points in lines.items()
            for size, point in sorted(points.items(), key=lambda item: int(item[0]))
        ]  # fmt: skip
        tables.append(table(["case", axis, "ordermq, krow/s", "baseline, krow/s", "ratio"], rows))
    return (
        "## Growth of the Spark bridge\n\n"
        f"{work['rows']:,} rows in each run, ordermq and baseline alternated in one process, "
        f"{work['rounds']} rounds; a ratio is the median of the rounds' own, the bands are minimum "
        "and maximum. Every queue is a partition: the baseline pays for the tasks, too. Reads have "
        "six columns; a stage reads rows cached in the JVM.\n\n"
        "![ratios by queues, keys and batch sizes](pictures/spark_growth.png)\n\n"
        + "\n".join(tables)
        + source_line(result)
    )


MOST_DRIVER_MS = 10  # per micro-batch


def driver(result: dict[str, Any]) -> str:
    work, row = result["workload"], result["row"]
    is_met = row["batch_median_ms"] <= MOST_DRIVER_MS
    return (
        "## Driver half of a stream per micro-batch\n\n"
        f"The calls of one batch (latestOffset, reportLatestOffset, commit, partitions) of an "
        f"ordered query over {work['queues']} queues, with their locks held and the broker a "
        f"process of its own; {work['batches']} batches. Spark's own part is some 150 ms.\n\n"
        + table(
            ["call", "ms", "target", "met"],
            [
                ["first call: connect, lock, read offsets", f"{row['first_ms']:.1f}", "", ""],
                ["micro-batch, median", f"{row['batch_median_ms']:.2f}", f"<= {MOST_DRIVER_MS}",
                 verdict(is_met)],
                ["micro-batch, 99th percentile", f"{row['batch_p99_ms']:.2f}", "", ""],
                ["stop: wait, commit, unlock", f"{row['close_ms']:.1f}", "", ""],
            ],
        )
        + source_line(result)
    )  # fmt: skip


LEAST_STATE_RATIO = {
    "apply_with_keyed_state": 30.0,
    "apply_with_state": 1.0,
    'apply_with_state, engine="rows"': 1.0,
}
# CPU ms per 1,000 rows: with a call per key, and by column where a key has several rows.
MOST_MS_PER_KEY = 60.0
MOST_MS_BY_COLUMN = 10.0


def _state_target(name: str, row: dict[str, Any], base: str, rows_per_key: int) -> list[str]:
    least = LEAST_STATE_RATIO.get(name)
    if name == "apply_with_keyed_state" and rows_per_key > 1:
        # Spark's own costs by the key, so with more rows of each the ratio says less.
        is_met = row["cpu_ms_per_thousand_rows"] <= MOST_MS_BY_COLUMN
        return [f"CPU ms <= {MOST_MS_BY_COLUMN:g}", verdict(is_met)]
    if least is not None and name != base:
        is_met = min(row["cpu_ratio"], row["rate_ratio"]) >= least
        return [f"relative >= {least:g}", verdict(is_met)]
    if "per_key" in name:
        is_met = row["cpu_ms_per_thousand_rows"] <= MOST_MS_PER_KEY
        return [f"CPU ms <= {MOST_MS_PER_KEY:g}", verdict(is_met)]
    return ["", ""]


def state(result: dict[str, Any]) -> str:
    work, base = result["workload"], result.get("relative_to", "apply_with_state")
    rows_per_key = work.get("rows_per_key", 1)
    title = "" if rows_per_key == 1 else f", {rows_per_key} rows per key"
    rows = [
        [name, f"{row['keys']:,}", f"{row['rows']:,}", f"{row['rows_per_second']:,.0f}",
         f"{row['rate_ratio']:.1f}", f"{row['cpu_ms_per_thousand_rows']:,.1f}",
         f"{row['cpu_ratio']:.1f}", *_state_target(name, row, base, rows_per_key)]
        for name, row in result["ways"].items()
    ]  # fmt: skip
    load = work.get("load_before")
    kept = result["ways"]["apply_with_keyed_state"]
    return (
        f"## Stages with state on Spark{title}\n\n"
        f"A stream of {work['keys']:,} keys in {work['queues']} queues; rows per key and "
        f"micro-batch: {rows_per_key}. A count and a sum are kept per key. A "
        "function per key makes Series and a DataFrame, unless it takes NumPy arrays, and most of "
        "its time is pandas' then. Ways took turns; medians of the rounds behind a warm-up: "
        f"{work.get('rounds', 1)}. Where all would take too long, a way is given fewer keys. CPU "
        "time, that of Spark's planning of a micro-batch included, is that of the whole process "
        f"tree{'' if load is None else f'; the load before was {load}'}. The "
        f"states of {kept['keys']:,} keys take {kept['state_mib']} MiB in the workers and "
        f"{kept['stored_mib']} MiB on disk, and equal NumPy's sums.\n\n"
        + table(
            ["way", "keys", "rows", "rows/s", f"relative to {base}",
             "CPU ms per 1,000 rows", "relative", "target", "met"],
            rows,
        )
        + source_line(result)
    )  # fmt: skip


MOST_CPU = {"64": 0.25, "1000": 0.06}  # relative to a task per queue
LEAST_THROUGHPUT = {"4": 1.0}


def queues(result: dict[str, Any]) -> str:
    work, lines = result["workload"], []
    for name, row in sorted(result["queues"].items(), key=lambda item: int(item[0])):
        cpu, seconds = row["cpu_seconds"], row["seconds"]
        target, is_met = "", ""
        if name in MOST_CPU:
            target = f"CPU <= {MOST_CPU[name]}"
            is_met = verdict(cpu["ratio"] <= MOST_CPU[name])
        elif name in LEAST_THROUGHPUT:
            target = f"throughput >= {LEAST_THROUGHPUT[name]}"
            is_met = verdict(1 / seconds["ratio"] >= LEAST_THROUGHPUT[name])
        lines.append([
            f"{int(name):,}", f"{row['rows']:,}", f"{row['rounds']}",
            f"{cpu['before']:.2f}", f"{cpu['now']:.2f}", f"{cpu['ratio']:.3f}",
            f"{1 / seconds['ratio']:.2f}", target, is_met,
        ])  # fmt: skip
    return (
        "## Reading many queues\n\n"
        "A topic read in a batch from the embedded broker to Spark's `noop` sink. Before: commit "
        f"{work['commit_before']}, which has a task per queue. Both checkouts have a program of "
        "their own and take turns. CPU time is that of the program, the JVM and all Python "
        "workers; medians, and a ratio is the median of the rounds' own.\n\n"
        + table(
            ["queues", "rows", "rounds", "CPU s, before", "CPU s, now", "CPU, ratio",
             "throughput, ratio", "target", "met"],
            lines,
        )
        + source_line(result)
    )  # fmt: skip


MOST_IDLE_PERCENT = 2
MOST_NEWS_MS = 150


def idle(result: dict[str, Any]) -> str:
    work, lines = result["workload"], []
    for broker, row in result["brokers"].items():
        is_met = (
            row["driver_percent_of_a_core"] <= MOST_IDLE_PERCENT
            and row["until_seen_ms"]["slowest"] <= MOST_NEWS_MS
        )
        lines.append([
            broker,
            f"{row['driver_percent_of_a_core']:.1f} %",
            f"{row['tree_percent_of_a_core']:.1f} %",
            *(
                f"{row[name][which]}"
                for name in ("until_seen_ms", "until_the_batch_runs_ms")
                for which in ("median", "slowest")
            ),
            verdict(is_met),
        ])  # fmt: skip
    return (
        "## An idle stream\n\n"
        f"A stream over {work['queues']:,} queues without new messages for "
        f"{work['idle_seconds']:.0f} s, then {work['messages']} messages one by one, each into "
        "another queue. CPU time in percent of a core. A message is seen when the driver half "
        "tells Spark of it; its batch runs after Spark has written its log and planned. Target: "
        f"the driver half takes at most {MOST_IDLE_PERCENT} %, and the slowest message is seen "
        f"within {MOST_NEWS_MS} ms.\n\n"
        + table(
            ["broker", "driver half", "all of Spark", "seen after ms, median", "slowest",
             "batch runs after ms, median", "slowest", "met"],
            lines,
        )
        + source_line(result)
    )  # fmt: skip


LEAST_AHEAD = 3


def link(result: dict[str, Any]) -> str:
    work, rates = result["workload"], result["rows_per_second"]
    lines = [
        [name, f"{rate:,}", *([f"{result['ratio']}", f">= {LEAST_AHEAD}",
         verdict(result["ratio"] >= LEAST_AHEAD)] if name == "ahead" else ["", "", ""])]
        for name, rate in rates.items()
    ]  # fmt: skip
    return (
        "## One queue over a slow link\n\n"
        f"A task's reading of one queue, {work['rows']:,} rows, without Spark, behind a proxy that "
        f"holds every byte back for {work['one_way_ms']:.1f} ms each way; an answer has "
        f"{work['messages_per_answer']} messages, as RocketMQ's.\n\n"
        + table(["pulls", "rows/s", "ratio", "target", "met"], lines)
        + source_line(result)
    )


# Least throughput and most CPU time of ordermq on RocketMQ, relative to Kafka's connector.
BESIDE_KAFKA = {
    "key and value": (1.5, 0.6),
    "all columns": (1.2, 0.9),
    "count by key": (1.4, 0.7),
    "sink": (1.0, None),
}


ROW_PROFILE = """
Where the time goes. A reader of two columns spends a quarter of a microsecond on a row, and one of
all columns half of one. The rest is Spark's copy of each column from Arrow into its rows, above all
of the strings: with `all_properties=true` a map of properties has ten. So ask for `columns`.
RocketMQ hands out at most 32 messages per answer, unless [settings of the broker](spark.md#tuning)
say more; its broker then spends three times what Kafka's does on a message that is read, and twice
to three times as much on one that is written: on a machine whose cores serve the broker, too, that
limits the rate.

Where a row's wall time goes that is written into an ordinary topic. RocketMQ's broker alone needs
between three quarters of the time that Spark, connector and broker of Kafka take together, and all
of it, from run to run: the last row of the table has the sink's own requests, made beforehand and
sent while nothing else runs. What it does with them, sampled with
`perf` on a busy machine: 45% is the thread that reads each message from the log again, behind the
answer: it parses the properties into a map, writes the entry of the queue by a system call, and
indexes the id. A quarter stores the batches, half of it the kernel's zeroing of the log's new
pages; a tenth reads requests and writes answers, which have an id per message. Requests of an
eighth of the size took as long. With the broker's setting `putConsumeQueueDataByFileChannel=false`,
which writes those entries without a system call each, it took 2.7 instead of 3.9 us of CPU time a
row, in the same wall time.
A [batch topic](spark.md#batch-topics) stores, indexes and hands out a request as one record, as
Kafka does, and none of this is done for a row. Its rows have keys and bodies alone.
"""
START_PROFILE = """
Spark starts four Python processes for a source in Python, for its schema, its offsets, its batches
and its tasks; each imports PySpark and PyArrow, and ordermq. That is the longer start.
"""


def beside_kafka(result: dict[str, Any]) -> str:
    work, versions, lines = result["workload"], result["versions"], []
    written = work.get("rounds_written")
    for what, ways in result["works"].items():
        rate, cpu = BESIDE_KAFKA[what]
        for name, row in ways.items():
            is_judged = name.startswith(f"ordermq, RocketMQ {versions['rocketmq']}")
            is_met = row["rate_ratio"] >= rate and (cpu is None or row["cpu_ratio"] <= cpu)
            target = f">= {rate}" + ("" if cpu is None else f"; CPU <= {cpu}")
            lines.append([
                what, name, f"{row['krows_per_second']:,}", f"{row['rate_ratio']:.2f}",
                f"{row['cpu_us_per_row']:.2f}", f"{row['cpu_ratio']:.2f}",
                f"{row['broker_cpu_us_per_row']:.2f}",
                target if is_judged else "", verdict(is_met) if is_judged else "",
            ])  # fmt: skip
    return (
        "## Spark's connector to Kafka and ordermq\n\n"
        f"The same {work['rows']:,} messages, bodies of {work['body_bytes']} bytes, "
        f"{work['keys']:,} keys drawn from a Zipf distribution, in {work['queues']} partitions or "
        f"queues; batch reads to Spark's `noop` sink and batch writes of "
        f"{work.get('rows_written', work['rows']):,} cached rows, alternated "
        f"in one session, {counted(work['rounds'], 'round')} after one that warms up"
        f"{f', of writes {written}' if written else ''}. CPU time is that of the program, the JVM "
        "and the Python workers; the broker's own is the last figure. Ratios are medians of the "
        f"rounds' ratios to Kafka's connector. Load of the machine before: {work['load_before']}. "
        f"PySpark {versions['pyspark']}, Kafka {versions['kafka']}, "
        f"connector {versions['connector']}.\n\n"
        "![rows per second and CPU per row](pictures/spark_kafka.png)\n\n"
        + table(
            ["work", "reads from, writes to", "krow/s", "ratio", "CPU us per row", "ratio",
             "broker's CPU us per row", "target", "met"],
            lines,
        )
        + ROW_PROFILE
        + _written_row(result["works"]["sink"])
        + source_line(result)
    )  # fmt: skip


def _written_row(sides: dict[str, dict[str, Any]]) -> str:
    """Return the table of the wall time of a row that the sink writes, in microseconds."""
    lines = []
    for name, row in sides.items():
        both = row["cpu_us_per_row"] + row["broker_cpu_us_per_row"]
        lines.append([
            name, f"{row['cpu_us_per_row']:.2f}", f"{row['broker_cpu_us_per_row']:.2f}",
            f"{both / 2:.2f}", f"{1e3 / row['krows_per_second']:.2f}",
        ])  # fmt: skip
    head = [
        "sink",
        "Spark and client, CPU us",
        "broker, CPU us",
        "both on two cores, us",
        "wall, us",
    ]
    return (
        "\n"
        + table(head, lines)
        + "\nA broker's CPU time is counted until it rests: RocketMQ's parses and indexes each "
        "message behind its answers, so that both together may take longer than the wall time.\n"
    )


LATENCIES = {
    "latency_median_ms": "send to foreachBatch, median, ms",
    "latency_p99_ms": "99th percentile, ms",
    "idle_percent_of_a_core": "idle, % of a core",
    "cold_start_ms": "program's start to first rows, ms",
    "recovery_ms": "kill -9 to next rows, ms",
}


def kafka_latency(result: dict[str, Any]) -> str:
    work, rows = result["workload"], result["rows"]
    peer = next(iter(rows.values()))
    lines = [
        [name, *(f"{row[key]:,.0f}" if row[key] >= 100 else f"{row[key]:.1f}" for key in LATENCIES),
         "" if row is peer else ", ".join(
             label.split(",")[0] for key, label in LATENCIES.items() if row[key] > peer[key]
         ) or "none"]
        for name, row in rows.items()
    ]  # fmt: skip
    return (
        "## Latency of micro-batches, ordermq and Kafka's connector\n\n"
        f"A query without a trigger at {work['rate']:,} messages/s over {work['queues']} queues "
        f"for {work['measured_seconds']} s, each side in a program of its own, by turns, "
        f"{work['rounds']} rounds, medians. CPU time while idle is that of the whole process tree. "
        "After kill -9 of the driver's JVM and its workers the program is started again at once; "
        f"without a group, so no locks. Load of the machine before: {work['load_before']}.\n\n"
        + table(["reads from", *LATENCIES.values(), "worse than Kafka's in"], lines)
        + START_PROFILE
        + source_line(result)
    )


SECTIONS = {
    "spark": section,
    "spark_kafka": beside_kafka,
    "spark_kafka_latency": kafka_latency,
    "spark_driver": driver,
    "spark_growth": growth,
    "spark_idle": idle,
    "spark_link": link,
    "spark_memory": memory,
    "spark_queues": queues,
    "spark_state": state,
    "spark_state_rows": state,
}
