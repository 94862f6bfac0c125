"""Every comparison of the core's table: what is held beside what, its target, and why it misses.

An explanation is printed only while its row misses. It says where the time goes, as a profile
showed it, and what was tried; who changes the code it speaks of looks at it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench import workloads

QUEUE = "Java ProcessQueue"
LOCKS = "Java RebalanceLockManager"
CODEC = "Java MessageDecoder"


@dataclass(frozen=True)
class Row:
    """One comparison: our case beside a peer's, or beside another case of ours.

    Args:
        at_least: how many times ours must be faster than the peer.
        at_most: how many times ours may take what the other case of ours takes; without
            one, the figure itself. With neither there is no target.
        why: the explanation of a miss.
    """

    what: str
    work: str
    case: str
    peer: str = ""
    peer_case: str = ""
    at_least: float | None = None
    at_most: float | None = None
    why: str = ""

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}x"
        if self.at_most is not None:
            return f"<= {self.at_most:g}" + ("x" if self.peer else "")
        return ""


def depth_case(shape: str, depth: int) -> str:
    return f"{shape}, depth {depth // workloads.CORE_BATCH * workloads.CORE_BATCH}"


def rows() -> Iterator[Row]:
    """Every core row of the targets, and what else was measured beside a peer."""
    yield from _process_queue()
    yield from _offset_map()
    yield from _lock_table()
    yield from _codec()
    yield from _memory()


def _process_queue() -> Iterator[Row]:
    for shape, by_depth, why in (
        ("objects", {1_000: 4, 100_000: 7}, _OBJECTS),
        ("batches", {1_000: 10, 100_000: 20}, _BATCHES),
        ("received", {1_000: 10, 100_000: 20}, _RECEIVED),
    ):
        for depth, factor in by_depth.items():
            yield Row(
                f"process queue, {shape}, depth {depth:,}",
                "process_queue",
                depth_case(shape, depth),
                QUEUE,
                depth_case("objects", depth),
                at_least=factor,
                why=why,
            )
    for depth in (1_000, 10_000):
        case = depth_case("objects", depth)
        yield Row(
            f"process queue, objects, depth {depth:,}",
            "process_queue",
            case,
            "pyrocketmq ProcessQueue",
            case,
        )
    for depth in (1_000_000, 10_000_000):
        for shape in ("objects", "batches", "columns"):
            yield Row(
                f"flatness, {shape}: depth {depth:,} over 1,000",
                "process_queue",
                depth_case(shape, depth),
                "ordermq",
                depth_case(shape, 1_000),
                at_most=1.3,
                why=_FLATNESS_OF_OBJECTS if shape == "objects" else _FLATNESS,
            )


def _offset_map() -> Iterator[Row]:
    block = workloads.CORE_MAP_BLOCK
    for how, said in (("", ""), (" by block", f", {block} at a time")):
        for order in ("random",) if how else ("random", "sparse"):
            for size in (1_000, 100_000, 1_000_000):
                case = f"{order}{how}, size {size}"
                for peer, factor in (("SortedDict", 10), ("LOBTree", 2)):
                    yield Row(
                        f"offset map, {order}{said}, {size:,}", "offset_map", case, peer, case,
                        at_least=factor, why=_MAP_BY_BLOCK if how else _MAP_BY_KEY,
                    )  # fmt: skip


def _lock_table() -> Iterator[Row]:
    for kind, factor in (("name", 3), ("message queue", 1)):
        for entries in (1_024, 1_000_000):
            case = f"batch 64, entries {entries}"
            yield Row(
                f"lock table, renew of 64 by {kind}, {entries:,} locks",
                "lock_table",
                f"{kind}, {case}",
                LOCKS,
                case,
                at_least=factor,
                why=_LOCKS,
            )


def _codec() -> Iterator[Row]:
    for kind, text, factor in (("columns", "columns", 10), ("objects", "body, tags, keys", 1)):
        for body_bytes in workloads.CORE_CODEC_BODY_BYTES:
            case = f"32 x {body_bytes} bytes"
            yield Row(
                f"codec, {text}, {case}", "codec", f"{kind}, {case}", CODEC, case,
                at_least=factor, why=_CODEC,
            )  # fmt: skip


def _memory() -> Iterator[Row]:
    counts = dict.fromkeys(("objects", "batches", "columns"), workloads.CORE_MEMORY_MESSAGES)
    for shape, sizes in (counts | {"received": (workloads.CORE_MEMORY_RECEIVED,)}).items():
        for messages in sizes:
            yield Row(
                f"memory, {shape}, {messages:,} messages, bytes a message",
                "memory",
                f"{shape}, {messages} messages",
                at_most=24,
                why=_MEMORY,
            )


_OBJECTS = ""
_BATCHES = ""
_RECEIVED = ""
_FLATNESS_OF_OBJECTS = ""
_FLATNESS = ""
_MAP_BY_KEY = ""
_MAP_BY_BLOCK = ""
_LOCKS = ""
_CODEC = ""
_MEMORY = ""
