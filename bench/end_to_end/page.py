"""The end-to-end sections of docs/benchmarks.md; bench/report.py joins them."""

from __future__ import annotations

from typing import Any

from bench.markdown import source_line, table, verdict

SHOWN_AS = {"bare pull loop": "baseline: pull and discard"}


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
        "them. Medians of alternating rounds.\n\n"
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


# By batch size: least throughput and most CPU per message, relative to Java's client.
_ROCKETMQ_TARGETS = {"1": (1.5, 0.45), "32": (2.0, 0.35)}


# CPU time per message in per cent, by `perf record` of ordermq_consumer on the real broker
# (2026-11-21; samples of the I/O thread and of the worker).
_SPENT = {
    "I/O thread: the interpreter, allocation": (40, 21),
    "I/O thread: kernel (receive, send, poll, passing the interpreter lock)": (21, 11),
    "I/O thread: uvloop, orjson, the core": (5, 3),
    "worker: the interpreter, allocation": (27, 59),
    "worker: kernel (wake-ups, waiting for the interpreter lock)": (6, 5),
    "worker: the core": (1, 1),
}
_SPENT_WORDS = (
    "The native core takes about 2 % of that time: it indexes pull bodies and does puts, takes and "
    "commits. The rest is Python code per pull and per call, spread evenly. On the I/O thread a "
    "pull of 32 messages costs about 10 us besides the kernel: cutting the frame and reading its "
    "JSON header 2.8 us (1.1 us for the JSON itself), statistics and the next request 1 to 1.5 us "
    "each. One pass of the consume loop costs 6 us whatever its size: claim and settlement 2.8 us, "
    "statistics 0.8 us. One listener call at batch 1 costs 0.9 us: 0.25 us the listener of this "
    "benchmark, 0.1 us each its context, the clock and the loop, and 0.2 us its share of the pass. "
    "Both threads share one interpreter lock, so at batch 1 the sum of both bounds the "
    "throughput.\n\n"
    "At batch 32 broker and client share two cores. Each of the eight queues has one pull in "
    "flight, and they move together: nine answers in ten arrive in reads that contain all eight "
    "(62,500 pulls in 10,700 reads), the next pulls leave in one write, and the worker runs while "
    "the broker works. A pull costs the broker 40 to 46 us in three threads that wake each other "
    "(selector 13, codec 13, pull 16), and the client 25 to 33 us. In the same minutes, on a "
    "machine with other load, a loop that pulls and discards (`python -m bench.peers.bare_pull`) "
    "reached 736,000 messages/s, batch 32 615,000 and Java 259,000 (medians of 4). So 2.8 times "
    "Java's throughput was the upper limit there.\n\n"
    "**Latest improvement.** A queue that is empty at the end of a pass is no longer put back into "
    "the pool for one more pass, which happened after nearly every pull (1.7 passes per pull, now "
    "0.9). That reduced the CPU per message at batch 32 by 11 % and raised the throughput by 3 % "
    "(8 runs each).\n\n"
    "**Tried without success.** Pulls with binary headers: the broker answers in JSON and is no "
    "faster (1.44 instead of 1.30 us per message). Writing the next pulls after the first answer "
    "or after half of a read: 1.45 instead of 1.23 us at the broker and 7 to 10 % fewer "
    "messages/s, "
    "because joined requests are cheaper for it. Sending them before the answer is counted and "
    "buffered: no difference, although measured under other load. A switch interval of 0.1 ms "
    "instead "
    "of 5 ms: at batch 1 11 % more CPU and 3 % fewer messages/s. One worker per queue for quick "
    "listeners: they compete for the interpreter lock, and one run in ten fell to a third.\n\n"
    "**Not tried.** Frames and headers cut and read by the native core, which would save about "
    "2 us "
    "per pull. One wake-up of the worker for several pulls, which would save passes at batch "
    "32 and "
    "leave the broker idle at batch 1.\n\n"
    "Profile: `perf record -e cpu-clock -F 1500 python -m bench.end_to_end.ordermq_consumer "
    "ADDRESS catch_up --group G --batch 32 --pull-size 32 --messages 2000000 --warm 200000` on "
    "a broker filled by `bench_catch_up.fill`, samples by thread and library; the broker's "
    "threads by `/proc/PID/task/*/schedstat` before and after.\n"
)


def spent_table() -> str:
    rows = [[what, f"{by_32} %", f"{by_1} %"] for what, (by_32, by_1) in _SPENT.items()]
    return (
        "\n**CPU time of ordermq per message, by thread**\n\n"
        + table(["part", "batch 32", "batch 1"], rows)
        + "\n"
        + _SPENT_WORDS
    )


def rocketmq_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for batch, ratio in result["ratios"].items():
        rate, cpu = _ROCKETMQ_TARGETS[batch]
        ours, java = (result["rows"][f"{who}, batch {batch}"] for who in ("ordermq", "Java client"))
        rows.append([
            batch,
            f"{ours['messages_per_second']:,}", f"{java['messages_per_second']:,}",
            f"{ratio['rate']:.2f}x", f">= {rate}x", verdict(ratio["rate"] >= rate),
            f"{ours['cpu_us_per_message']:.2f}", f"{java['cpu_us_per_message']:.2f}",
            f"{ratio['cpu']:.2f}x", f"<= {cpu}x", verdict(ratio["cpu"] <= cpu),
            str(ours["peak_mib"]), str(java["peak_mib"]),
        ])  # fmt: skip
    return (
        "## Catch-up from a RocketMQ broker, compared with Java's client\n\n"
        f"RocketMQ {work['rocketmq']}, name server and broker with default settings; "
        f"{work['messages']:,} waiting messages of {work['body_bytes']} bytes in "
        f"{work['queues']} queues, pulls of {work['pull_size']}, an orderly listener that counts. "
        "The clock starts when half of them are read, so that Java's compiler is warm; ratios are "
        "medians of the ratios of each round. Memory is the peak of the client's process, Java's "
        "with a heap of at most 1 GiB.\n\n"
        + table(
            [
                "batch",
                "ordermq, messages/s",
                "Java",
                "ratio",
                "target",
                "met",
                "ordermq, CPU us per message",
                "Java",
                "ratio",
                "target",
                "met",
                "ordermq, MiB",
                "Java",
            ],
            rows,
        )
        + "\n![Catch-up: throughput and CPU of each client](pictures/catch_up_rocketmq.png)\n"
        + spent_table()
        + other_clients(result)
        + source_line(result)
    )


def other_clients(result: dict[str, Any]) -> str:
    """Return the rows of the older Python clients and the gRPC client, where measured."""
    rows = []
    for name, row in result["rows"].items():
        client, batch = name.rsplit(", batch ", 1)
        if client in ("ordermq", "Java client"):
            continue
        ours = result["rows"][f"ordermq, batch {batch}"]
        rows.append([
            client, batch, f"{row['messages_per_second']:,}", f"{row['cpu_us_per_message']:.2f}",
            f"{ours['messages_per_second'] / row['messages_per_second']:.1f}x",
            f"{ours['cpu_us_per_message'] / row['cpu_us_per_message']:.3f}x",
            str(row["peak_mib"]),
        ])  # fmt: skip
    if not rows:
        return ""
    return (
        "\n**Other clients on the same topic**, alternating with the two above. `ordermq on "
        "asyncio` is ordermq without uvloop, on Python's own event loop. `rocketmq` 0.4.4 is the "
        "C++ client in its wheel, in orderly mode; the gRPC client is `rocketmq-python-client` in "
        "FIFO mode through RocketMQ's proxy, whose CPU is not counted. These two call Python once "
        "per message and read a smaller part of the topic, half of it untimed; the offsets of that "
        "half are checked to ascend in each queue. Ratios are those of the medians.\n\n"
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
    )


_LATENCY_WORDS = (
    "\n**Stages at 1,000 messages/s** (time stamps of 6,000 messages, medians, 2026-11-21). Of "
    "850 us in all: 38 us until the request is written and 19 us for the write; 728 us until the "
    "pull's answer has reached the I/O thread, which is the broker noticing the message and three "
    "wake-ups; 50 us until the queue is given to a worker, after the next pull was written; 39 us "
    "until the listener is called. Waking the worker before the next pull is written gains "
    "nothing: "
    "it wakes twice, because the interpreter lock is not free yet.\n"
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
        "ratios of each round. Milliseconds from the call of send to the listener.\n\n"
        + table(["messages/s", "client", *shown.values(), "worst", "CPU us per message"], rows)
        + "\n![Latency by percentile](pictures/latency_rocketmq.png)\n"
        + _LATENCY_WORDS
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


# By case: least share of the ceiling, and most CPU us per message.
_LANE_TARGETS = {
    "32 threads, 1 ms": (0.75, None),
    "100 threads, 10 ms": (0.95, None),
    "1000 tasks, 10 ms": (0.6, 15.0),
    "1000 tasks, 100 ms": (0.97, 15.0),
}


def lanes_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for case, by_version in result["rows"].items():
        ours, python, bare = (by_version[each] for each in ("native", "python", "bare"))
        share, cpu = _LANE_TARGETS[case]
        rows.append([
            case, f"{ours['share']:.2f}", f">= {share}", verdict(ours["share"] >= share),
            f"{python['share']:.2f}", f"{bare['share']:.2f}", f"{ours['cpu_us']:.1f}",
            "" if cpu is None else f"<= {cpu:.0f}",
            "" if cpu is None else verdict(ours["cpu_us"] <= cpu),
            f"{python['cpu_us']:.1f}", f"{bare['cpu_us']:.1f}",
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
                "target",
                "met",
                "loop in Python",
                "bare",
                "CPU us per message",
                "target",
                "met",
                "loop in Python",
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
        ]
        for row in result["rows"]
        for kind in ("join", "leave")
    ]
    heads = ["listener", "event", "queues moved", "median ms", "worst ms", "duplicates in all"]
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
    "\n**Stages of a single send** (time stamps of 8,000 sends, medians, 2026-11-21): 20 us "
    "from the "
    "call to the write, 17 us the write itself, 80 to 110 us until the broker's answer has "
    "woken the "
    "I/O thread, 16 us to read it, 7 us to wake the caller, 10 us until the caller runs, 2 us to "
    "return. While the producer is idle the caller writes to the socket itself; through the I/O "
    "thread the write came after 58 us. Besides the two system calls and the wake-ups about 40 us "
    "of Python code remain, spread evenly (`cProfile`: nothing above 4 us).\n"
    "\nSince 2026-11-23 a caller that sends alone also reads the answer itself, so that an "
    "answer wakes one thread and not two; the figures above are from before. On a machine "
    "with much other work, `send_path` `native` beside `python` in four alternating runs of "
    "400 sends to RocketMQ: medians of 111 to 259 us instead of 283 to 1,380, means of 155 to "
    "638 us instead of 512 to 2,481. On an embedded broker, beside the version before, 0.8 to "
    "0.9 of the CPU time with one message in flight and with 8 to 256 from one thread, and no "
    "difference with eight threads (medians of four to six alternating rounds).\n"
)


def send_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for way, found in result["rows"].items():
        java = found["Java client"]
        for name, row in found.items():
            if name == "Java client":
                continue
            ratio = result["ratios"][way][name]
            rows.append([
                way, name,
                f"{row['messages_per_second']:,}", f"{java['messages_per_second']:,}",
                f"{ratio['rate']:.2f}x", ">= 1x", verdict(ratio["rate"] >= 1),
                f"{row['cpu_us_per_message']:.1f}", f"{java['cpu_us_per_message']:.1f}",
                f"{ratio['cpu']:.2f}x",
            ])  # fmt: skip
    return (
        "## Ordered sends to a RocketMQ broker, compared with Java's producer\n\n"
        f"RocketMQ {work['rocketmq']}, bodies of {work['body_bytes']} bytes, {work['queues']} "
        "queues. Each key has one unacknowledged message. Java needs one thread per key for that; "
        "ordermq sends eight keys from one `send_stream`, and was also measured with one thread "
        "per key. The clock starts after a warm-up, and the broker is asked what it stored; ratios "
        "are medians of the ratios of each round.\n\n"
        + table(
            ["mode", "client", "ordermq, messages/s", "Java", "ratio", "target", "met",
             "ordermq, CPU us per message", "Java", "ratio"],
            rows,
        )
        + "\n![Ordered sends: throughput by mode](pictures/send_rocketmq.png)\n"
        + _SEND_WORDS
        + source_line(result)
    )  # fmt: skip


SECTIONS = {
    "catch_up_rocketmq": rocketmq_section,
    "send_rocketmq": send_section,
    "latency_rocketmq": latency_section,
    "catch_up_embedded": catch_up_section,
    "shape_embedded": shape_section,
    "lanes_embedded": lanes_section,
    "hand_off_rocketmq": hand_off_section,
    "hand_off_embedded": hand_off_section,
    "take_over_embedded": take_over_section,
}
