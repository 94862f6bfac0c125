"""Comparisons of the core's table: the case, the peer, the target, and the analysis of a miss.

An analysis is printed only while its row misses the target. It says where a profile showed the time
to go, and what was tried. Check it again after a change of the code it describes.
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
    """One comparison: a case of ordermq with a case of a peer, or with another one of its own.

    Args:
        at_least: the factor by which ordermq must be faster than the peer.
        at_most: the largest ratio to the other case of ordermq; without another case, the largest
            figure. Without both there is no target.
        why: the analysis of a miss.
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
    """Yield every comparison, with a target or without."""
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
                f"flatness, {shape}: depth {depth:,} relative to 1,000",
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
                        at_least=factor, why=_MAP_OF_SPARSE_KEYS if order == "sparse" else _MAP,
                    )  # fmt: skip


def _lock_table() -> Iterator[Row]:
    for kind, peer_kind, factor in (
        ("id", "", 3),
        ("message queue", "", 1),
        ("equal message queue", "equal, ", 1),
    ):
        for entries in (1_024, 1_000_000):
            case = f"batch 64, entries {entries}"
            yield Row(
                f"lock table, renew 64 by {kind}, {entries:,} locks",
                "lock_table",
                f"{kind}, {case}",
                LOCKS,
                f"{peer_kind}{case}",
                at_least=factor,
                why=_LOCKS,
            )
    yield Row(
        "flatness, renew 64 by id: 1,000,000 locks relative to 1,024",
        "lock_table",
        "id, batch 64, entries 1000000",
        "ordermq",
        "id, batch 64, entries 1024",
        at_most=1.3,
        why=_FLATNESS_OF_LOCKS,
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
                f"memory, {shape}, {messages:,} messages, bytes per message",
                "memory",
                f"{shape}, {messages} messages",
                at_most=24,
                why=_MEMORY,
            )


_OBJECTS = (
    "Pair, offset and message of each put are three Python objects, made before the timing and not "
    "in the cache: the same 16 batches in a loop, all in the cache, take 11 ns per message, 4,096 "
    "batches 18. Half of a profile's samples are put's walk over the pairs; the rest is three "
    "calls per batch and the list that take makes. Done: the walk copies nothing and checks each "
    "pair once. Tried: prefetch the pairs in put; no gain, the processor overlaps these misses "
    "itself."
)
_BATCHES = (
    "Half of a profile's samples are CPython: three calls per batch, two attributes of the batch, "
    "the tuple and the list that take_segments makes. A third is the core, the put of one run and "
    "the slot of the batch. At this depth the batch object and the run come from memory."
)
_RECEIVED = _BATCHES
_FLATNESS_OF_OBJECTS = (
    "A message that waited behind so many others is no longer in the cache: the reference counts "
    "in take and commit cost one miss per message. The core's own entries are one run per batch "
    "and cost the same at every depth, as the batches show."
)
_FLATNESS = (
    "Messages are taken so long after they were put that run, sizes and batch object come from "
    "memory: one miss each per batch."
)
_MAP = ""
_MAP_OF_SPARSE_KEYS = (
    "Hardly two of these offsets (below 2**48) share a block of the map, so each one is an entry "
    "of the directory, which is a B+ tree; LOBTree is a B-tree in C, too. At 1,000 entries 40% of "
    "a profile's samples are the two searches, 19% the change of two leaves (13% memmove), and "
    "most of the rest the interpreter's loop, two calls and their ints, which every Python map "
    "pays. At a million entries the searches wait for leaves from memory. Blocks are made for "
    "neighbouring offsets, which is what queues have."
)
_LOCKS = ""
_FLATNESS_OF_LOCKS = (
    "A million locks do not fit into the cache: each renewed queue is a miss, eight of them in "
    "flight at once. Done: four ids given out in turn share two neighbouring cache lines (41 to "
    "18 ns). Possible: longer runs of ids, at the price of longer probing for others."
)
_CODEC = (
    "Of 1,020 ns for a body of 32 messages the index takes 225, the four column objects with their "
    "memory 240, scan and hash of the tags 260; the rest is the call and the other columns. With "
    "1,024 messages per call it is 19 ns per message. Possible: one allocation for all columns."
)
_MEMORY = ""
