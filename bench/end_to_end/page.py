"""The end-to-end sections of docs/benchmarks.md; bench/report.py joins them."""

from __future__ import annotations

import statistics
from typing import Any

from bench.markdown import source_line, table
from bench.peers.grpc_programs import JAVA_VERSION
from bench.peers.pull_floor import FLOOR

SHOWN_AS = {
    "bare pull loop": "baseline: pull and discard, in Python",
    FLOOR: "floor: pull and discard, in C",
}


def catch_up_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [
            SHOWN_AS.get(peer, peer),
            f"{row['messages_per_second']:,}",
            f"{row['share_of_bare']:.2f}",
            f"{row['cpu_us_per_message']:.2f}",
            f"{row['broker_cpu_us_per_message']:.2f}",
        ]
        for peer, row in result["rows"].items()
    ]
    return (
        "## Catch-up on the embedded broker\n\n"
        f"{work['messages']:,} waiting messages of {work['body_bytes']} bytes in "
        f"{work['queues']} queues, one consumer process with a trivial orderly listener, pulls "
        f"of {work['pull_size']}. The baseline is a loop that pulls, counts frames and discards "
        "them; the floor is the same in C on one blocking socket. Medians of alternating "
        "rounds.\n\n"
        + table(
            [
                "client",
                "messages/s",
                "relative to baseline",
                "CPU us per message",
                "broker CPU us per message",
            ],
            rows,
        )
        + source_line(result)
        + "\n![Catch-up on the embedded broker: throughput](pictures/catch_up_embedded.png)\n"
    )


_BROKER_WORDS = (
    "\n**The broker's part.** A pull of 32 messages costs the broker 40 to 46 us of CPU in three "
    "threads that wake each other (`/proc/PID/task/*/schedstat`, 2026-11-21); on two cores that "
    "bounds the quickest clients.\n\n"
    "**Tried without success.** Pulls with binary headers: the broker answers in JSON and is no "
    "faster (1.44 instead of 1.30 us per message). Writing the next pulls after the first answer, "
    "or after half of a read: 1.45 instead of 1.23 us at the broker and 7 to 10 % fewer "
    "messages/s, because requests that arrive together are cheaper for it. One worker per queue "
    "for quick listeners: they compete for the interpreter lock, and one run in ten fell to a "
    "third.\n"
)


def rocketmq_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    fastest_first = sorted(
        result["rows"].items(), key=lambda found: -found[1]["messages_per_second"]
    )
    for name, row in fastest_first:
        client, _, batch = name.partition(", batch ")
        rows.append([
            client, batch, f"{row['messages_per_second']:,}", f"{row['cpu_us_per_message']:.2f}",
            *beside(result, client, batch), str(row["peak_mib"]),
        ])  # fmt: skip
    return (
        "## Catch-up from a RocketMQ broker, compared with other clients\n\n"
        f"RocketMQ {work['rocketmq']}, name server and broker with default settings; "
        f"{work['messages']:,} waiting messages of {work['body_bytes']} bytes in "
        f"{work['queues']} queues, pulls of {work['pull_size']}, an orderly listener that counts. "
        "The clock starts when half of what a client reads is read, so that Java's compiler is "
        "warm; slower clients read a part of the topic. The clients take turns; ratios are medians "
        "of the ratios of each round, of ordermq to the client. Memory is the peak of the client's "
        "process, Java's with a heap of at most 1 GiB.\n\n"
        + table(
            [
                "client",
                "batch",
                "messages/s",
                "CPU us per message",
                "throughput of ordermq, relative",
                "CPU of ordermq, relative",
                "MiB",
            ],
            rows,
        )
        + "\n![Catch-up: throughput and CPU of each client](pictures/catch_up_rocketmq.png)\n"
        + _CLIENT_WORDS
        + _BROKER_WORDS
        + source_line(result)
    )


def beside(result: dict[str, Any], client: str, batch: str) -> list[str]:
    """Return the ratios of ordermq to a client; to one without batches, those of each batch."""
    if client == "ordermq":
        return ["", ""]
    ratios = [
        found[client]
        for of_batch, found in result["ratios"].items()
        if client in found and batch in ("", of_batch)
    ]
    return [
        " / ".join(f"{ratio['rate']:.2f}x" for ratio in ratios),
        " / ".join(f"{ratio['cpu']:.3f}x" for ratio in ratios),
    ]


_CLIENT_WORDS = (
    "\n`pull loop in C` is the floor: one thread on one blocking socket that pulls, scans the "
    "headers, walks the records and drops them, without listener, group, locks and commits "
    "(`bench/peers/c/pull_floor.c`); its ratios are those of ordermq at batch 1 / 32. `Go client` "
    "is `rocketmq-client-go` v2, an orderly push consumer. `ordermq on asyncio` is ordermq without "
    "uvloop, on Python's own event loop. `rocketmq` 0.4.4 is the C++ client in its wheel, in "
    "orderly mode; the gRPC client is `rocketmq-python-client` in FIFO mode through RocketMQ's "
    "proxy, whose CPU is not counted. These two call Python once per message; the offsets of "
    "their untimed half are checked to ascend in each queue.\n\n"
    "`Rust client` is the orderly push consumer of `rocketmq-client-rust` 1.0.0 from crates.io, "
    "with its own settings; its program checks that the offsets of each queue ascend without gaps, "
    "and in trials they did, also while a second member came and went. By default it sends at most "
    "4,096 pulls per second and processor, and forgets what is above: of eight trials with 600,000 "
    "messages in batches of 32 one stood still for two minutes. `rocketmq` 5.0.0 there speaks gRPC "
    "only.\n"
)


def latency_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    shown = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9"}
    rows = []
    for rate, found in sorted(result["rates"].items(), key=lambda item: int(item[0])):
        pace = f"{int(rate):,}"
        for name, row in found["rows"].items():
            rows.append([
                pace, name, *(f"{row[figure] / 1000:.2f}" for figure in shown),
                f"{row['worst_us'] / 1000:.1f}", f"{row['cpu_us_per_message']:.0f}",
            ])  # fmt: skip
        ratios = found["ratios"]
        rows.append([
            pace, "ordermq / Java", *(f"{ratios[figure]:.2f}x" for figure in shown),
            "", f"{ratios['cpu_us_per_message']:.2f}x",
        ])  # fmt: skip
    return (
        "## Latency from send to listener on a RocketMQ broker, compared with Java's client\n\n"
        f"RocketMQ {work['rocketmq']} with default settings; messages of {work['body_bytes']} "
        "bytes "
        f"and {work['keys']} keys in {work['queues']} queues. Each client has its own producer "
        "(one "
        "thread per key, at a fixed rate) and an orderly consumer in one process, one listener "
        "call "
        f"per message. {work['rounds']} alternating rounds of {work['seconds']} s after "
        f"{work['warm_seconds']} s of warm-up; medians of the rounds, ratios are medians of the "
        "ratios of each round. Milliseconds from "
        f"{work.get('from', 'the call of send')} to the listener.\n\n"
        + table(["messages/s", "client", *shown.values(), "worst", "CPU us per message"], rows)
        + "".join(
            f"\nLeft out: {int(rate):,} messages/s, which a client did not reach ({reason})\n"
            for rate, reason in result.get("left_out", {}).items()
        )
        + "\n![Latency by percentile](pictures/latency_rocketmq.png)\n"
        + source_line(result)
    )


def shape_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for name, row in result["rows"].items():
        batch, listener, shape = name.split(", ")
        whole = result["rows"][f"{batch}, {listener}, batches"]
        rate = row["messages_per_second"]
        cpu = row["cpu_us_per_message"]
        rows.append([
            batch, listener, shape, f"{rate:,}", f"{cpu:.2f}",
            f"{whole['messages_per_second'] / rate:.2f}x",
            f"{cpu / whole['cpu_us_per_message']:.2f}x",
        ])  # fmt: skip
    return (
        "## Effect of the batch shape on catch-up\n\n"
        f"The catch-up above ({work['messages']:,} messages with a tag and a key), with the "
        "process "
        "queue fed in three shapes. *batches* (what ordermq does): the pull answer as it is, and "
        "runs of it to the listener. *views*: one object per message, decoded when read. "
        "*objects*: "
        "one object per message, decoded on arrival. The listener counts, or reads body, tags and "
        "keys of every message. The gain is that of batches over the row.\n\n"
        + table(
            ["batch", "listener", "shape", "messages/s", "CPU us per message", "gain", "gain, CPU"],
            rows,
        )
        + source_line(result)
    )


def lanes_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for case, by_version in result["rows"].items():
        versions = [by_version[each] for each in ("native", "bare")]
        rows.append([
            case, *(f"{each['share']:.2f}" for each in versions),
            *(f"{each['cpu_us']:.1f}" for each in versions),
        ])  # fmt: skip
    return (
        "## Key lanes with listeners that wait\n\n"
        f"One consumer with `order_by_key=True` on the embedded broker, {work['queues']} queues, "
        f"{work['keys']:,} keys; the listener only waits. So many calls at once make at most "
        "calls / wait a second, the ceiling. Keys of plain listeners (threads) are skewed, Zipf "
        f"with exponent {work['skews']['skewed']}; those of `async def` listeners (tasks) are all "
        "as frequent. *Bare*: threads and tasks that only wait, without messages.\n\n"
        + table(
            [
                "calls at once, wait",
                "share of the ceiling",
                "bare",
                "CPU us per message",
                "bare",
            ],
            rows,
        )
        + source_line(result)
    )


def hand_off_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [
            *([row["client"]] if "client" in row else []),
            f"{row['listener_ms']} ms",
            kind,
            str(row[kind]["moves"]),
            f"{row[kind]['median_ms']:.0f}",
            f"{row[kind]['worst_ms']:.0f}",
            str(row["duplicates"]),
            str(row.get("lock_requests_per_second", "")),
        ]
        for row in result["rows"]
        for kind in ("join", "leave")
    ]
    heads = ["listener", "event", "queues moved", "median ms", "worst ms", "duplicates in all"]
    heads.append("lock requests in any second, most of a member")
    title, where, picture = "## Hand-off under load", "on the embedded broker", ""
    if "rocketmq" in work:
        heads.insert(0, "client")
        picture = "\n![Pause of moved queues](pictures/hand_off_rocketmq.png)\n"
        title += " on a RocketMQ broker, compared with Java's client"
        where = (
            f"on RocketMQ {work['rocketmq']}, groups of the two clients alternating, "
            f"{work['alternations']} times"
        )
    return (
        f"{title}\n\n"
        f"{work['messages_per_second']} messages/s over {work['queues']} queues, members as "
        f"processes: {work['members']}, {where}. The pause of a moved queue is the time from the "
        "old owner's last listener call to the new owner's first. It includes the normal interval "
        "between two messages of a queue.\n\n" + table(heads, rows) + picture + source_line(result)
    )


def take_over_section(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['lease_ms'] / 1000:.0f} s",
            str(row["kills"]),
            f"{row['median_ms'] / 1000:.1f}",
            f"{row['worst_ms'] / 1000:.1f}",
            str(row["lost"]),
            str(row["duplicates_per_kill"]),
        ]
        for row in result["rows"]
    ]
    return (
        "## Take-over after kill -9\n\n"
        "A member that holds half of the queues is killed; measured is the time until the "
        "other one "
        "holds them. Duplicates are messages that were finished within the commit interval (the "
        "default of 5 s) and not yet committed.\n\n"
        + table(
            ["lease", "kills", "median s", "worst s", "lost", "duplicates per kill"],
            rows,
        )
        + source_line(result)
    )


_SEND_WORDS = (
    "\nOf the threads that wait for their receipts one reads the answers and wakes the others; "
    "none passes the I/O thread. On a machine with much other work, this compared with reads "
    "by the I/O thread in four alternating runs of 400 sends to RocketMQ, one at a time: medians "
    "of 111 to 259 us instead of 283 to 1,380 (2026-11-23).\n"
)


def send_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for way, found in result["rows"].items():
        java = found.get("Java client")
        for name, row in found.items():
            if name == "Java client":
                continue
            if java is None:
                rows.append([
                    way, name, f"{row['messages_per_second']:,}", "failed", "",
                    f"{row['cpu_us_per_message']:.1f}", "", "",
                ])  # fmt: skip
                continue
            ratio = result["ratios"][way][name]
            rows.append([
                way, name,
                f"{row['messages_per_second']:,}", f"{java['messages_per_second']:,}",
                f"{ratio['rate']:.2f}x",
                f"{row['cpu_us_per_message']:.1f}", f"{java['cpu_us_per_message']:.1f}",
                f"{ratio['cpu']:.2f}x",
            ])  # fmt: skip
    return (
        "## Ordered sends to a RocketMQ broker, compared with Java's producer\n\n"
        f"RocketMQ {work['rocketmq']}, bodies of {work['body_bytes']} bytes, {work['queues']} "
        "queues. Each key has one unacknowledged message. Java needs one thread per key for that; "
        "ordermq sends them from one `send_stream`, and eight keys also with one thread "
        "per key. The clock starts after a warm-up, and the broker is asked what it stored; ratios "
        "are medians of the ratios of each round.\n\n"
        + table(
            ["mode", "client", "ordermq, messages/s", "Java", "ratio",
             "ordermq, CPU us per message", "Java", "ratio"],
            rows,
        )
        + "\n![Ordered sends: throughput by mode](pictures/send_rocketmq.png)\n"
        + _SEND_WORDS
        + source_line(result)
    )  # fmt: skip


def produce_section(result: dict[str, Any]) -> str:
    work, found = result["workload"], result["figures"]
    return (
        "## Sends to the embedded broker, compared with bare SQLite\n\n"
        f"{work['in_flight']} keys in {work['queues']} queues, each with one unacknowledged "
        f"message of {work['body_bytes']} bytes; the broker answers when a message is on the disk, "
        "and "
        "sends that wait together share a commit. Bare SQLite writes rows of "
        f"{work['row_bytes']} bytes into one table in the same folder, with `synchronous=FULL` and "
        "as many rows per commit as the broker had. The requests were encoded before the clock "
        f"started, and each costs the broker {found['broker_cpu_us_per_message']:.1f} us of CPU. A "
        f"producer takes longer, {found['producer_cpu_us_per_message']:.1f} us, and sends "
        f"{found['producer_messages_per_second']:,.0f} messages/s. Medians of "
        f"{work['rounds']} alternating rounds.\n\n"
        + table(
            ["ordermq, messages/s", "SQLite, rows/s", "share", "rows per commit"],
            [[
                f"{found['messages_per_second']:,.0f}", f"{found['bare_rows_per_second']:,.0f}",
                f"{found['share_of_bare']:.2f}", f"{found['messages_per_commit']:.0f}",
            ]],
        )
        + source_line(result)
    )  # fmt: skip


def queues_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [
            f"{int(queues):,}", f"{row['messages_per_second']:,.0f}",
            f"{row['cpu_us_per_message']:.2f}",
            f"{row['idle_cpu_percent']:.2f} % of a core" if "idle_cpu_percent" in row else "",
            f"{row['close_s'] * 1_000:.0f}", f"{row['peak_mib']:.0f}",
        ]
        for queues, row in sorted(result["rows"].items(), key=lambda found: int(found[0]))
    ]  # fmt: skip
    return (
        "## One consumer of many queues\n\n"
        f"{work['messages']:,} messages of {work['body_bytes']} bytes on the embedded broker, "
        "evenly in the queues of a topic; one consumer with a trivial orderly listener, batches of "
        f"32. Idle: {work['idle_seconds']:g} s while nothing comes. Medians of {work['rounds']} "
        "alternating rounds.\n\n"
        + table(
            ["queues", "messages/s", "CPU us per message", "idle", "close, ms", "peak MiB"], rows
        )
        + source_line(result)
    )


def start_section(result: dict[str, Any]) -> str:
    first, last = result["first_message_ms_range"]
    rows = [[f"`{statement}`", f"{factor:.2f}x"] for statement, factor in result["import"].items()]
    return (
        "## Start\n\n"
        "CPU of an import in a new interpreter, relative to that of `import asyncio, ssl, logging, "
        "json`, which ordermq needs anyway.\n\n"
        + table(["statement", "relative"], rows)
        + "\nFrom the construction of a consumer to the first call of its listener, with a message "
        f"waiting on the embedded broker: {result['first_message_ms']:.1f} ms (median of "
        f"{result['workload']['runs']} processes, {first:.1f} to {last:.1f}). That process held "
        f"{result['peak_mib']:.1f} MiB at most.\n" + source_line(result)
    )


def processes_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [processes, f"{row['messages_per_second']:,}"]
        for processes, row in sorted(result["rows"].items())
    ]
    return (
        "## Processes: `ordermq run`\n\n"
        f"A listener that computes for {work['listener_us']} us per message, by a fixed number of "
        f"turns of a loop in Python; {work['queues']} queues on the embedded broker, which shares "
        "the cores. Measured is the middle half of the messages. Medians of "
        f"{work['rounds']} alternating rounds; two processes have "
        f"{result['ratio']:.2f} times the throughput of one (median of the ratios).\n\n"
        + table(["processes", "messages/s"], rows)
        + source_line(result)
    )


def java_options_table(result: dict[str, Any]) -> str:
    """Return what Java's client costs with the same options, if it was measured."""
    java: dict[str, dict[str, float]] = result.get("java", {})
    options = [name.removesuffix(", batch 32") for name in java if name.endswith(", batch 32")]
    if not options:
        return ""
    rows = [
        [
            option,
            *(cell for batch in (32, 1) for cell in java_cells(result, f"{option}, batch {batch}")),
        ]
        for option in options
    ]
    return (
        "\n\nJava's client with the same options, in us per message, and ordermq's CPU and "
        "throughput relative to it. Java reads "
        f"{result['workload']['java_messages']:,} messages, the first half of which is not timed, "
        "for its compiler needs as long. It has no metrics for Prometheus.\n\n"
        + table(
            [
                "option",
                *("Java, batch 32", "CPU", "throughput"),
                *("Java, batch 1", "CPU", "throughput"),
            ],
            rows,
        )
    )


def beside_java(result: dict[str, Any], row: str) -> tuple[float, float]:
    """Return ordermq's CPU and throughput relative to that of Java's client in the same row."""
    ours, java = result["rows"][row], result["java"][row]
    cpu = ours["cpu_us_per_message"] / java["cpu_us_per_message"]
    return cpu, ours["messages_per_second"] / java["messages_per_second"]


def java_cells(result: dict[str, Any], row: str) -> tuple[str, str, str]:
    cpu, rate = beside_java(result, row)
    return f"{result['java'][row]['cpu_us_per_message']:.2f}", f"{cpu:.2f}x", f"{rate:.1f}x"


_WHERE_OPTIONS_COST = """

Where it goes, of samples with `perf` of 2,000,000 messages each; the machine did other work, so
that only shares count (2026-11-29). **TLS**: half of what it adds is OpenSSL, a fifth are Python's
objects around each record, the rest is the kernel's and copies. At batch 1 two fifths are the
interpreter's, whose lock the thread that deciphers and the listener's take by turns.
**deduplicate**: nine tenths were the search of an id among the last 1,000 of its queue, most of it
waits for memory; it reads less since. **lite poll**, one message at a time: nine tenths are in the
thread that polls, two thirds in the interpreter, for each call is a method with its checks and a
batch that it returns. **spans**, here and
below: nine tenths of what they take of a send, and seven tenths of a call, are OpenTelemetry's: a
span of 15 attributes alone takes its SDK 8 to 9 us, more than all else (2026-11-30).
"""


def options_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows: dict[str, dict[str, list[str]]] = {}
    for name, row in result["rows"].items():
        option, _, batch = name.partition(", batch ")
        rows.setdefault(option, {})[batch] = [
            f"{row['cpu_us_per_message']:.2f}",
            f"{row['ratio']:.2f}x",
        ]
    return (
        "## Cost of options\n\n"
        f"CPU of a consumer of RocketMQ {work['rocketmq']} with one option at a time, in us per "
        f"message: an orderly listener that counts, {work['messages']:,} waiting messages of "
        f"{work['body_bytes']} bytes in {work['queues']} queues, pulls of {work['pull_size']}. The "
        "last two thirds of them are timed. Ratios are to the nearest run without an option, one "
        "of which comes before every third option. The broker verifies no signatures. By key: see "
        "[Key lanes](#key-lanes-with-listeners-that-wait).\n\n"
        + table(
            ["option", "batch 32", "relative", "batch 1", "relative"],
            [[option, *by_batch["32"], *by_batch["1"]] for option, by_batch in rows.items()],
        )
        + _WHERE_OPTIONS_COST
        + java_options_table(result)
        + (
            "\n\nSends with one option at a time, in the same manner: "
            f"{work['in_flight']} messages in flight by `send_stream`, or awaited by as many "
            "tasks, each with a key of its own; and one message at a time by `send`. Ratios are to "
            "the nearest run of the same way without an option, those of tasks to `send_stream`. "
            "The end of the producer is timed with its sends, for traces are sent until then."
            "\n\n"
        )
        + table(
            ["sends", "us", "relative"],
            [
                [name, f"{row['cpu_us_per_message']:.2f}", f"{row['ratio']:.2f}x"]
                for name, row in result["sends"].items()
            ],
        )
        + source_line(result)
    )


_FATES = {
    "kill": "is killed (-9)",
    "freeze": "is frozen (SIGSTOP)",
    "leave": "leaves",
}


def grpc_section(result: dict[str, Any]) -> str:
    works = result["workloads"]
    loads = [f"load {one['load']} with those that {name}" for name, one in works.items()]
    work = works["consume"]
    rates, java = [], []
    for name, found in result.get("rates", {}).items():
        ours, theirs, ratio = found["ordermq"], found["official client"], found["ratio"]
        if (own := found.get("Java client")) is not None:
            to_java = found["ratio to Java client"]
            java.append([
                name, f"{own['messages_per_second']:,}", f"{to_java['rate']:.2f}x",
                f"{own['cpu_us_per_message']:.0f}", f"{to_java['cpu']:.2f}x",
                f"{own['broker_cpu_us_per_message']:.0f}",
            ])  # fmt: skip
        rates.append([
            name, f"{ours['messages_per_second']:,}", f"{theirs['messages_per_second']:,}",
            f"{ratio['rate']:.1f}x", f"{ours['cpu_us_per_message']:.0f}",
            f"{theirs['cpu_us_per_message']:.0f}", f"{ratio['cpu']:.2f}x",
            f"{ours['broker_cpu_us_per_message']:.0f}",
            f"{theirs['broker_cpu_us_per_message']:.0f}",
        ])  # fmt: skip
    faults = []
    for fate, words in _FATES.items():
        for client, row in result.get("faults", {}).get(fate, {}).items():
            if isinstance(row, dict):
                faults.append([
                    words, client, f"{row['keys_that_waited']} of 64",
                    f"{row['median_wait_ms'] / 1_000:.1f}", f"{row['worst_wait_ms'] / 1_000:.1f}",
                    str(row["lost"]), str(row["repeats"]), str(row["order_breaks"]),
                ])  # fmt: skip
    leaves = []
    for client, row in result.get("leaves", {}).items():
        if isinstance(row, dict):
            waits, before = sorted(row["worst_wait_ms"]), sorted(row["worst_wait_before_ms"])
            leaves.append([
                client, str(len(waits)), f"{statistics.median(waits):.0f}", f"{waits[-1]:,}",
                f"{statistics.median(before):.0f}", f"{before[-1]:,}",
            ])  # fmt: skip
    return (
        "## Over gRPC, compared with the official Python client\n\n"
        f"`{work['package']}` and ordermq at one proxy of RocketMQ {work['rocketmq']} in cluster "
        f"mode, with brokers and clients on the same two cores ({', '.join(loads)}). Bodies of "
        "100 bytes, 8 queues, a listener call per message. The clients take turns; medians of the "
        "rounds, and of the ratios of each round. CPU is that of the client, then that of proxy "
        "and brokers.\n\n"
        + table(
            ["program", "ordermq, messages/s", "official", "ratio", "ordermq, CPU us per message",
             "official", "ratio", "servers, CPU us per message", "with the official client"],
            rates,
        )
        + (
            f"\nRocketMQ's client for Java (`rocketmq-client-java` {JAVA_VERSION}) in the same "
            "rounds; its process is new in each, and its compiler at work:\n\n"
            + table(
                ["program", "Java, messages/s", "ordermq to it", "CPU us per message",
                 "ordermq to it", "servers, CPU us per message"],
                java,
            )
            if java
            else ""
        )
        + "\nTwo members of each consume one topic of 64 keys in order; one of each meets its fate "
        "at the same time. A key waited if a message sent from a second before on took over a "
        "second to its first delivery; the times are the longest of each key, median and worst, in "
        "seconds. *ordermq by POP* is the same over the brokers' own protocol, leases of 15 s; "
        "over gRPC ordermq's are of 10 s. A message that was not delivered when the watch ended "
        "counts as lost.\n\n"
        + table(
            ["one of two members", "client", "keys that waited", "median", "worst", "lost",
             "repeats", "order breaks"],
            faults,
        )
        + (
            "\nMembers of ordermq leave one after the other, two stay; another has joined before "
            "each. The longest wait of any message sent from 0.1 s before a leave to 3 s after it, "
            "and in the 3 s before that, in ms:\n\n"
            + table(
                ["client", "leaves", "median", "longest", "median before", "longest before"],
                leaves,
            )
            if leaves
            else ""
        )
        + source_line(result)
    )  # fmt: skip


SECTIONS = {
    "catch_up_rocketmq": rocketmq_section,
    "grpc_rocketmq": grpc_section,
    "options_rocketmq": options_section,
    "send_rocketmq": send_section,
    "latency_rocketmq": latency_section,
    "catch_up_embedded": catch_up_section,
    "shape_embedded": shape_section,
    "produce_embedded": produce_section,
    "lanes_embedded": lanes_section,
    "queues_embedded": queues_section,
    "processes_embedded": processes_section,
    "start_embedded": start_section,
    "hand_off_rocketmq": hand_off_section,
    "hand_off_embedded": hand_off_section,
    "take_over_embedded": take_over_section,
}
