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
                f"lock table, renew of 64 by {kind}, {entries:,} locks",
                "lock_table",
                f"{kind}, {case}",
                LOCKS,
                f"{peer_kind}{case}",
                at_least=factor,
                why=_LOCKS,
            )
    yield Row(
        "flatness, renew of 64 by id: 1,000,000 locks over 1,024",
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
                f"memory, {shape}, {messages:,} messages, bytes a message",
                "memory",
                f"{shape}, {messages} messages",
                at_most=24,
                why=_MEMORY,
            )


_OBJECTS = (
    "Pair, offset and message of each put are three Python objects made ahead, and cold: the same "
    "16 batches again and again, all in cache, take 11 ns a message, 4,096 batches 18, and half "
    "of a profile's samples are put's walk over the pairs. The rest is three calls a batch and "
    "the list that take makes. Done: the walk copies nothing and checks a pair once. Tried: put "
    "loads the pairs ahead: no gain, the processor overlaps these misses by itself."
)
_BATCHES = (
    "Half of a profile's samples are CPython: three calls a batch, two attributes of the batch, "
    "the tuple and the list that take_segments makes. A third is the core, the put of one run and "
    "the slot of the batch. At this depth the batch object and the run come from memory."
)
_RECEIVED = _BATCHES
_FLATNESS_OF_OBJECTS = (
    "A message that waited behind so many others is no longer in cache: take's reference to it "
    "and commit's release cost a miss a message. The core's own entries are a run a batch and "
    "cost the same at every depth, which the batches show."
)
_FLATNESS = (
    "What is taken was put so long ago that the run, the sizes and the batch's object come from "
    "memory, one miss each a batch."
)
_MAP = ""
_MAP_OF_SPARSE_KEYS = (
    "Of offsets below 2**48 hardly two share a block of the map, so each is an entry of its "
    "directory, a B+ tree, and LOBTree is a B-tree in C too, with the same loop around it. At "
    "1,000 entries 40% of a profile's samples are the two searches, 19% the change of two leaves, "
    "of which 13% memmove, most of the rest the interpreter's loop, two calls and their ints, "
    "which every Python map pays. At a million the searches wait for leaves from memory. Blocks "
    "are for what queues have, neighbouring offsets."
)
_LOCKS = ""
_FLATNESS_OF_LOCKS = (
    "The places of a million locks do not fit into a cache: each queue renewed is a miss, eight "
    "of them on their way at once. Done: four ids given out in turn lie in two lines side by side "
    "(41 to 18 ns). Next: longer runs of ids, which make probing of others longer."
)
_CODEC = (
    "Of 1,020 ns for a body of 32 messages the index takes 225, the four column objects with "
    "their memory 240, the tags' scan and hash 260, the call and the rest of the pass the others. "
    "At 1,024 messages a call it is 19 ns a message. Next: one piece of memory for all columns."
)
_MEMORY = ""
