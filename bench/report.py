"""Tables and pictures of bench/results: python -m bench.report [--check].

Writes docs/benchmarks.md, its pictures, and the figures of README.md between their marks.
With --check it only says whether they are up to date, and ends with 1 if not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from bench.core import page as core_page
from bench.machine import RESULTS, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
_MARKS = re.compile(r"(<!-- figures:begin -->\n).*?(<!-- figures:end -->)", re.DOTALL)


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine_line(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"CPython {machine['python']}, core {machine['core']}, {machine['date']}"
    )


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
        + f"\n`{result['command']}` ({machine_line(result)})\n"
        + "\n![catch-up](pictures/catch_up.png)\n"
    )


# batch: at least so many times Java's messages a second, at most so much of its CPU a message.
_ROCKETMQ_TARGETS = {"1": (1.5, 0.45), "32": (2.0, 0.35)}


def rocketmq_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = []
    for batch, ratio in result["ratios"].items():
        rate, cpu = _ROCKETMQ_TARGETS[batch]
        ours, java = (result["rows"][f"{who}, batch {batch}"] for who in ("ordermq", "Java client"))
        rows.append([
            batch,
            f"{ours['messages_per_second']:,}", f"{java['messages_per_second']:,}",
            f"{ratio['rate']:.2f}x", f">= {rate}x", met(ratio["rate"] >= rate),
            f"{ours['cpu_us_per_message']:.2f}", f"{java['cpu_us_per_message']:.2f}",
            f"{ratio['cpu']:.2f}x", f"<= {cpu}x", met(ratio["cpu"] <= cpu),
        ])  # fmt: skip
    return (
        "## Catch-up from a real RocketMQ broker, beside Java's client\n\n"
        f"RocketMQ {work['rocketmq']}, name server and broker as they come; "
        f"{work['messages']:,} waiting messages of {work['body_bytes']} bytes in "
        f"{work['queues']} queues, pulls of {work['pull_size']}, an orderly listener that counts. "
        "The clock starts when half is read, for Java's compiler; ratios are medians of the "
        "rounds' own.\n\n"
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
            ],
            rows,
        )
        + f"\n`{result['command']}` ({machine_line(result)})\n"
    )


def met(holds: bool) -> str:
    return "yes" if holds else "**no**"


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
        + f"\n`{result['command']}` ({machine_line(result)})\n"
    )


def hand_off_section(result: dict[str, Any]) -> str:
    work = result["workload"]
    rows = [
        [
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
    return (
        "## Hand-off under load\n\n"
        f"{work['messages_per_second']} messages/s over {work['queues']} queues, members as "
        f"processes: {work['members']}, on the embedded broker. Silence is the time from the "
        "old owner's last listener call on a queue to the new owner's first, the pace's own "
        "gap between two messages of a queue included.\n\n"
        + table(
            ["listener", "move", "queues moved", "median ms", "worst ms", "duplicates in all"],
            rows,
        )
        + f"\n`{result['command']}` ({machine_line(result)})\n"
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
        + f"\n`{result['command']}` ({machine_line(result)})\n"
    )


def core_section(result: dict[str, Any]) -> str:
    said = (
        "## The core beside its peers\n\n"
        + core_page.text(result)
        + "\n"
        + table(core_page.HEAD, core_page.lines(result))
    )
    misses = core_page.misses(result)
    if misses:
        said += "\nWhere the time of what misses goes, and what is next:\n\n"
        said += "".join(f"{number}. {reason}\n" for number, reason in enumerate(misses, 1))
    return (
        said
        + f"\n`{result['command']}` ({machine_line(result)})\n"
        + "".join(
            f"\n![{said}](pictures/{file})\n"
            for work, (file, said) in core_page.PICTURES.items()
            if work in result["medians"]
        )
    )


def core_matrix_section(result: dict[str, Any]) -> str:
    return (
        "## The core alone: every operation of the process queue\n\n"
        "Nanoseconds of processor time a message on Cython, medians; the queue is brought back "
        "to its depth before each timing. Through cffi the same takes "
        f"{core_page.cffi_factor(result):.1f} times as long in the middle of all cases. The "
        "offset map, the codec and every other size: `bench/results/core_matrix.json`.\n\n"
        + table(*core_page.depth_table(result))
        + "\n"
        + table(*core_page.batch_table(result))
        + f"\n`{result['command']}` ({machine_line(result)})\n"
    )


SECTIONS = {
    "core": core_section,
    "core_matrix": core_matrix_section,
    "catch_up_rocketmq": rocketmq_section,
    "catch_up_embedded": catch_up_section,
    "shape_embedded": shape_section,
    "hand_off_embedded": hand_off_section,
    "take_over_embedded": take_over_section,
}


def page() -> str:
    parts = [
        "# Benchmarks\n\nGenerated by `python -m bench.report` from `bench/results`. Benchmarks "
        "are hard and this machine is shared: read ratios, not absolute figures.\n"
    ]
    for name, section in SECTIONS.items():
        result = load(name)
        if result is not None:
            parts.append(section(result))
    return "\n".join(parts)


def readme_figures() -> str:
    lines = []
    catch_up, hand_off = load("catch_up_embedded"), load("hand_off_embedded")
    take_over, rocketmq = load("take_over_embedded"), load("catch_up_rocketmq")
    if catch_up is not None:
        row = catch_up["rows"]["ordermq, batch 32"]
        lines.append(
            f"- Catch-up from the embedded broker, orderly listener, batches of 32: "
            f"{row['messages_per_second']:,} messages/s in one process, "
            f"{row['share_of_bare']:.0%} of a bare pull loop beside it."
        )
    if rocketmq is not None:
        whole, each = rocketmq["ratios"]["32"], rocketmq["ratios"]["1"]
        lines.append(
            f"- Catch-up from RocketMQ {rocketmq['workload']['rocketmq']} beside Java's client, "
            f"warmed up: batches of 32 {whole['rate']:.1f} times its messages/s at "
            f"{whole['cpu']:.2f} of its CPU a message, one by one {each['rate']:.1f} times at "
            f"{each['cpu']:.2f}."
        )
    if hand_off is not None:
        fast = hand_off["rows"][0]
        lines.append(
            f"- A member joins or leaves under load: a moved queue is silent for "
            f"{max(fast[k]['median_ms'] for k in ('join', 'leave')):.0f} ms in the median, "
            f"{max(fast[k]['worst_ms'] for k in ('join', 'leave')):.0f} ms at worst; "
            f"{fast['duplicates']} duplicates."
        )
    if take_over is not None:
        row = take_over["rows"][0]
        lines.append(
            f"- A member is killed with -9, lease {row['lease_ms'] / 1000:.0f} s: its queues are "
            f"held again after {row['worst_ms'] / 1000:.1f} s at worst, {row['lost']} messages "
            "lost."
        )
    lines.append("\nHow, and on what machine: [docs/benchmarks.md](docs/benchmarks.md).")
    return "\n".join(lines) + "\n"


def draw() -> None:
    """The pictures of the page; needs the `report` extra."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    core = load("core")
    if core is not None:
        from bench.core import pictures as core_pictures

        core_pictures.draw(core, PAGE.parent / "pictures")
    result = load("catch_up_embedded")
    if result is None:
        return
    names = list(result["rows"])
    rates = [row["messages_per_second"] / 1000 for row in result["rows"].values()]
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    bars = axes.barh(names[::-1], rates[::-1], color=["#2a6f97", "#2a6f97", "#9aa5b1"])
    axes.bar_label(bars, fmt="%.0f k", padding=4)
    axes.set_xlabel("thousand messages a second")
    axes.set_title("Catch-up on the embedded broker, one process", loc="left")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    target = PAGE.parent / "pictures" / "catch_up.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    readme = README.read_text()
    wanted = {
        PAGE: page(),
        README: _MARKS.sub(lambda found: found[1] + readme_figures() + found[2], readme),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if arguments.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python -m bench.report")
        sys.exit(1 if stale else 0)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    draw()
    print(f"wrote {', '.join(str(path.relative_to(ROOT)) for path in wanted)}")


if __name__ == "__main__":
    main()
