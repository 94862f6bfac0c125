"""The end-to-end sections of docs/benchmarks.md; bench/report.py puts them in."""

from __future__ import annotations

from typing import Any

from bench.markdown import source_line, table, verdict


def catch_up_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [
            peer,
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
        f"of {work['pull_size']}. The bare pull loop counts frames and throws them away. "
        "Medians of alternating rounds.\n\n"
        + table(
            ["who", "messages/s", "of the bare loop", "CPU us/message", "broker CPU us/message"],
            rows,
        )
        + source_line(result)
        + "\n![catch-up](pictures/catch_up_embedded.png)\n"
    )


# batch: at least so many times Java's messages a second, at most so much of its CPU a message.
_ROCKETMQ_TARGETS = {"1": (1.5, 0.45), "32": (2.0, 0.35)}


# Where a message's processor time went, in hundredths, by `perf record` of ordermq_consumer on
# the real broker (2026-11-21; samples of the I/O thread and of the worker).
_SPENT = {
    "I/O thread: the interpreter, allocation": (40, 21),
    "I/O thread: kernel (receive, send, poll, handing the interpreter over)": (21, 11),
    "I/O thread: uvloop, orjson, the core": (5, 3),
    "worker: the interpreter, allocation": (27, 59),
    "worker: kernel (being woken, waiting for the interpreter)": (6, 5),
    "worker: the core": (1, 1),
}
_SPENT_WORDS = (
    "Of that time the core has about 2 %: indexing a pull body, its put, the takes and commits. "
    "The rest is Python a pull and a call, and it is flat. A pull of 32 costs the I/O thread "
    "some 10 us beside the kernel: cutting the frame and reading its JSON header 2.8 (1.1 of it "
    "the JSON itself), counting and the next request 1 to 1.5 each. A turn of the worker costs "
    "6 us whatever it holds: claim and settlement 2.8, counting 0.8. A call at batch 1 costs "
    "0.9 us, of which the listener of this benchmark takes 0.25, its context, the clock and the "
    "loop 0.1 each, and its share of the turn 0.2. Both threads share one interpreter lock, so "
    "at batch 1 their sum bounds the rate.\n\n"
    "At batch 32 broker and client share two cores. One pull a queue is in flight, eight in "
    "all, and they go round together: nine answers in ten come in reads that hold all eight "
    "(62,500 pulls in 10,700 reads), their next pulls leave in one write, and the worker runs "
    "while the broker works. A pull costs the broker 40 to 46 us in three threads that wake "
    "each other (its selector 13, its codec 13, the pull 16), and us 25 to 33. In the same "
    "minutes, beside other load, a loop that drops what it pulls (`python -m "
    "bench.peers.bare_pull`) reached 736,000 messages/s, batch 32 615,000, Java 259,000 "
    "(medians of 4); so 2.8 times Java's rate was the most to be had there.\n\n"
    "Helped last: a queue that is empty as its turn ends is not put behind the others for one "
    "turn more, which nearly every pull's was (1.7 turns a pull, now 0.9): that alone took 11 % "
    "off the CPU of a message at batch 32, and gave 3 % more messages/s (8 runs each).\n\n"
    "Tried and left: pulls with binary headers, which the broker answers in JSON and serves no "
    "cheaper (1.44 instead of 1.30 us of its own a message); writing the next pulls after the "
    "first or half of a read's answers (broker 1.45 instead of 1.23 us, 7 to 10 % fewer "
    "messages/s: it is joined requests that it serves cheaply); sending them before what came "
    "is counted and buffered (no difference, though measured beside other load, where a core is "
    "seldom idle); an interpreter that switches threads after 0.1 ms instead of 5 (batch 1: 11 "
    "% more CPU, 3 % fewer messages/s); a worker a queue for quick listeners, which fight for "
    "the interpreter lock (one run in ten fell to a third). Not tried: frames and headers cut "
    "and read by the core, which would take some 2 us off a pull, and waking the worker for "
    "several pulls at once, which would spare batch 32 turns, and at batch 1 leave the broker "
    "idle while the worker runs.\n\n"
    "Profile: `perf record -e cpu-clock -F 1500 python -m bench.end_to_end.ordermq_consumer "
    "ADDRESS catch_up --group G --batch 32 --pull-size 32 --messages 2000000 --warm 200000` on "
    "a broker filled by `bench_catch_up.fill`, samples by thread and library; the broker's "
    "threads by `/proc/PID/task/*/schedstat` before and after.\n"
)


def spent_table() -> str:
    rows = [[what, f"{by_32} %", f"{by_1} %"] for what, (by_32, by_1) in _SPENT.items()]
    return (
        "\nWhere ours goes, CPU of a message by thread:\n\n"
        + table(["where", "batch 32", "batch 1"], rows)
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
        "## Catch-up from a real RocketMQ broker, beside Java's client\n\n"
        f"RocketMQ {work['rocketmq']}, name server and broker as they come; "
        f"{work['messages']:,} waiting messages of {work['body_bytes']} bytes in "
        f"{work['queues']} queues, pulls of {work['pull_size']}, an orderly listener that counts. "
        "The clock starts when half is read, for Java's compiler; ratios are medians of the "
        "rounds' own. Memory is the most a client's process held, Java's with a heap of at most "
        "1 GiB.\n\n"
        + table(
            [
                "batch",
                "ours, messages/s",
                "Java's",
                "ratio",
                "target",
                "met",
                "ours, CPU us/message",
                "Java's",
                "ratio",
                "target",
                "met",
                "ours, MiB",
                "Java's",
            ],
            rows,
        )
        + "\n![catch-up of each client](pictures/catch_up_rocketmq.png)\n"
        + spent_table()
        + other_clients(result)
        + source_line(result)
    )


def other_clients(result: dict[str, Any]) -> str:
    """The rows of Python's older and gRPC clients, where they were measured."""
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
        "\nOthers on the same topic, in turn with the two above. `ordermq on asyncio` is ours "
        "without uvloop, on the event loop that comes with Python. `rocketmq` 0.4.4 is "
        "the C++ client in its wheel, orderly; the gRPC client is `rocketmq-python-client` in FIFO "
        "mode through RocketMQ's proxy, whose CPU is not counted. These two call Python once a "
        "message and read less of the topic, half of it untimed; that half's offsets are "
        "checked to ascend in each queue. Ratios are of the medians.\n\n"
        + table(
            ["client", "batch", "messages/s", "CPU us/message", "ours, rate", "ours, CPU", "MiB"],
            rows,
        )
    )


_LATENCY_WORDS = (
    "\nWhere the time goes at 1,000 a second (stamps at the stages of 6,000 messages, medians, "
    "2026-11-21): of 850 us, 38 pass until the request is written and 19 in the write, 728 until "
    "the pull's answer reached the I/O thread, which is the broker's way of noticing a message "
    "and three wake-ups, 50 until the queue is given to a listener's thread, the next pull "
    "written first, and 39 until the listener is called. To wake the listener before the next "
    "pull is written gains nothing: it wakes twice, for the interpreter is not free.\n"
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
            pace, "ours / Java's", *(f"{ratios[figure]:.2f}x" for figure in shown),
            "", f"{ratios['cpu_us_per_message']:.2f}x",
        ])  # fmt: skip
    return (
        "## From send to listener on a real RocketMQ broker, beside Java's client\n\n"
        f"RocketMQ {work['rocketmq']}, as it comes; messages of {work['body_bytes']} bytes and "
        f"{work['keys']} keys in {work['queues']} queues, each client's own producer, a thread a "
        "key at its own pace, and its orderly consumer in one process, a listener call a "
        f"message. {work['rounds']} alternating rounds of {work['seconds']} s after "
        f"{work['warm_seconds']} s to warm up; medians of the rounds, ratios of the rounds' own. "
        "Milliseconds from the call of send.\n\n"
        + table(["messages/s", "who", *shown.values(), "worst", "CPU us/message"], rows)
        + "\n![latency by share](pictures/latency_rocketmq.png)\n"
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
        "## What the batch shape gains end to end\n\n"
        f"The catch-up above ({work['messages']:,} messages with a tag and a key), the consumer's "
        "process queue fed in three shapes: the pull answer as it is and runs of it to the "
        "listener (batches, the product); an object a message, decoded when read (views); an "
        "object a message, decoded on arrival (objects). The listener counts, or reads body, "
        "tags and keys of every message. Gains are of batches over that row.\n\n"
        + table(
            ["batch", "listener", "shape", "messages/s", "CPU us/message", "gain", "gain, CPU"],
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
    heads = ["listener", "move", "queues moved", "median ms", "worst ms", "duplicates in all"]
    title, where, picture = "## Hand-off under load", "on the embedded broker", ""
    if "rocketmq" in work:
        heads.insert(0, "client")
        picture = "\n![silence of moved queues](pictures/hand_off_rocketmq.png)\n"
        title += " on a real RocketMQ broker, beside Java's client"
        where = (
            f"on RocketMQ {work['rocketmq']}, groups of either client in turn, "
            f"{work['alternations']} times"
        )
    return (
        f"{title}\n\n"
        f"{work['messages_per_second']} messages/s over {work['queues']} queues, members as "
        f"processes: {work['members']}, {where}. Silence is the time from the "
        "old owner's last listener call on a queue to the new owner's first, the pace's own "
        "gap between two messages of a queue included.\n\n"
        + table(heads, rows)
        + picture
        + source_line(result)
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
        "Half of the queues belong to a member that is killed; the time until the other one "
        "holds them. Duplicates are what was finished within the commit interval (here the "
        "default of 5 s) and not yet committed.\n\n"
        + table(
            ["lease", "kills", "median s", "worst s", "lost", "duplicates a kill"],
            rows,
        )
        + source_line(result)
    )


_SEND_WORDS = (
    "\nWhere a send alone goes (stamps at the stages of 8,000 sends, medians, 2026-11-21): 20 us "
    "from the call to the write, 17 the write itself, 80 to 110 until the broker's answer has "
    "woken the I/O thread, 16 to read it, 7 to ring for the caller, 10 until that runs, 2 to "
    "return. The caller writes the socket itself where the producer is idle: when the I/O thread "
    "did, it was written after 58 us. What is left of ours beside the two system calls and the "
    "wake-ups is some 40 us of Python, and flat (`cProfile`: nothing over 4 us).\n"
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
        "## Ordered sends to a real RocketMQ broker, beside Java's producer\n\n"
        f"RocketMQ {work['rocketmq']}, bodies of {work['body_bytes']} bytes, {work['queues']} "
        "queues. Each key has one unacknowledged message; Java needs a thread a key for that, ours "
        "takes eight keys from one `send_many`, and with a thread a key, too. The clock starts "
        "after a warm-up, the broker is asked what it stored; ratios are medians of the rounds' "
        "own.\n\n"
        + table(
            ["way", "who", "ours, messages/s", "Java's", "ratio", "target", "met",
             "ours, CPU us/message", "Java's", "ratio"],
            rows,
        )
        + "\n![ordered sends](pictures/send_rocketmq.png)\n"
        + _SEND_WORDS
        + source_line(result)
    )  # fmt: skip


SECTIONS = {
    "catch_up_rocketmq": rocketmq_section,
    "send_rocketmq": send_section,
    "latency_rocketmq": latency_section,
    "catch_up_embedded": catch_up_section,
    "shape_embedded": shape_section,
    "hand_off_rocketmq": hand_off_section,
    "hand_off_embedded": hand_off_section,
    "take_over_embedded": take_over_section,
}
