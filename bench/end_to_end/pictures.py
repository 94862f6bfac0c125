"""The pictures of the end-to-end results; needs the `report` extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from bench.end_to_end.page import SHOWN_AS

COLOURS = {
    "ordermq": "#2a6f97",
    "ordermq, threads": "#89c2d9",
    "ordermq on asyncio": "#89c2d9",
    "Java client": "#e07a3f",
    "Go client": "#f2b880",
    "Rust client": "#c9744f",
    "pull loop in C": "#4a4e57",
    SHOWN_AS["pull loop in C"]: "#4a4e57",
    "rocketmq 0.4.4": "#9aa5b1",
    "gRPC client": "#c9ada7",
}
PLAIN = "#9aa5b1"
PLAIN_NUMBERS = FuncFormatter(lambda value, _: f"{value:g}")


def draw(results: dict[str, dict[str, Any]], folder: Path) -> None:
    """Draw each available result, by its name in bench/results, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        figure = PICTURES[name](result)
        figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})
        pyplot.close(figure)


def embedded(result: dict[str, Any]) -> Figure:
    """Draw the throughput of catch-up as bars."""
    figure, axes = pyplot.subplots(figsize=(7, 2.8), layout="constrained")
    rates = {
        SHOWN_AS.get(name, name): row["messages_per_second"] / 1000
        for name, row in result["rows"].items()
    }
    bars_of(axes, rates, "%.0f k")
    axes.set_xlabel("thousand messages per second")
    head(figure, "Catch-up from the embedded broker, one consumer", load(result))
    return figure


def beside_peers(result: dict[str, Any]) -> Figure:
    """Draw throughput and CPU of each client that catches up from a RocketMQ broker."""
    height = 0.6 + 0.3 * len(result["rows"])
    figure, both = pyplot.subplots(1, 2, figsize=(9, height), layout="constrained", sharey=True)
    rows = sorted(result["rows"].items(), key=lambda item: -item[1]["messages_per_second"])
    bars_of(both[0], {n: row["messages_per_second"] / 1000 for n, row in rows}, "%.0f k")
    bars_of(both[1], {n: row["cpu_us_per_message"] for n, row in rows}, "%.2f")
    both[0].set_xlabel("thousand messages per second")
    both[1].set_xscale("log")  # the slowest takes some 400 times as much as the quickest
    both[1].xaxis.set_major_formatter(PLAIN_NUMBERS)
    both[1].set_xlabel("microseconds of CPU per message (log scale)")
    both[0].set_title("Throughput", loc="left")
    both[1].set_title("CPU per message", loc="left")
    head(figure, "Catch-up of one orderly consumer", load(result))
    return figure


def sends(result: dict[str, Any]) -> Figure:
    """Draw ordered sends, one panel per mode: their throughputs differ a hundredfold."""
    ways = result["rows"]
    size = (7, 1.6 * len(ways))
    figure, panels = pyplot.subplots(len(ways), 1, figsize=size, layout="constrained")
    for axes, (way, clients) in zip(panels, ways.items(), strict=True):
        bars_of(
            axes, {n: row["messages_per_second"] / 1000 for n, row in clients.items()}, "%.1f k"
        )
        axes.set_title(way, loc="left")
    panels[-1].set_xlabel("thousand messages per second")
    head(figure, "Ordered sends of one producer, by mode", load(result))
    return figure


def latency(result: dict[str, Any]) -> Figure:
    """Draw the latency from send to listener by percentile."""
    rates = dict(sorted(result["rates"].items(), key=lambda item: int(item[0])))
    figure, panels = pyplot.subplots(
        1, len(rates), figsize=(9, 3.3), layout="constrained", sharey=True, squeeze=False
    )
    shares = {
        "p50": "p50_us",
        "p90": "p90_us",
        "p99": "p99_us",
        "p99.9": "p999_us",
        "worst": "worst_us",
    }
    for axes, (rate, found) in zip(panels[0], rates.items(), strict=True):
        for name, row in found["rows"].items():
            times = [row[figure_name] / 1000 for figure_name in shares.values()]
            axes.plot(list(shares), times, marker="o", label=name, color=COLOURS[name])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(PLAIN_NUMBERS)
        axes.set_title(f"{int(rate):,} messages per second", loc="left")
        axes.set_xlabel("percentile")
        bare(axes)
    panels[0][0].set_ylabel("milliseconds from send to listener\n(log scale)")
    panels[0][0].legend(frameon=False)
    head(figure, "Latency from send to listener", load(result))
    return figure


def hand_off(result: dict[str, Any]) -> Figure:
    """Draw the pause of a moved queue, median to worst."""
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    labels: list[str] = []
    for row in result["rows"]:
        for kind in ("join", "leave"):
            found, place = row[kind], len(labels)
            colour = COLOURS[row["client"]]
            axes.plot([found["median_ms"], found["worst_ms"]], [place, place], color=colour, lw=3)
            axes.plot(found["median_ms"], place, "o", color=colour)
            labels.append(f"{row['client']}, listener {row['listener_ms']} ms, {kind}")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds a moved queue is paused: median (dot) to worst")
    head(figure, "Hand-off when a third member joins or leaves", load(result))
    bare(axes)
    return figure


def load(result: dict[str, Any]) -> str:
    """Tell the load a result was measured under: broker, messages, queues."""
    work = result["workload"]
    broker = f"RocketMQ {work['rocketmq']}" if "rocketmq" in work else "embedded broker"
    parts = [broker]
    if "messages" in work:
        parts.append(f"{work['messages']:,} messages of {work['body_bytes']} bytes")
    elif "body_bytes" in work:
        parts.append(f"bodies of {work['body_bytes']} bytes")
    if "messages_per_second" in work:
        parts.append(f"{work['messages_per_second']:,} messages per second")
    if "keys" in work:
        parts.append(f"{work['keys']} keys")
    parts.append(f"{work['queues']} queues")
    return ", ".join(parts)


def head(figure: Figure, what: str, load: str) -> None:
    """Head a picture with what it shows, and the load below in small."""
    figure.suptitle(f"{what}\n", x=0.01, ha="left", fontsize="large")
    figure.text(0.01, 0.985, f"\n{load}", ha="left", va="top", fontsize="small", linespacing=1.7)


def bars_of(axes: Axes, values: dict[str, float], words: str) -> None:
    """Draw one bar per name, the first on top, each with its value."""
    names: Sequence[str] = list(values)[::-1]
    colours = [COLOURS.get(name.rsplit(", batch", 1)[0], PLAIN) for name in names]
    bars = axes.barh(names, [values[name] for name in names], color=colours)
    axes.bar_label(bars, fmt=words, padding=4)
    axes.margins(x=0.14)
    bare(axes)


def bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


PICTURES = {
    "catch_up_embedded": embedded,
    "catch_up_rocketmq": beside_peers,
    "send_rocketmq": sends,
    "latency_rocketmq": latency,
    "hand_off_rocketmq": hand_off,
}
