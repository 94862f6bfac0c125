"""Lane map: add 32, take, done 32, by number of keys and messages in flight; and 1M keys deep.

A flow keeps a standing number of messages waiting and as many in flight as `max_in_flight`
and the keys allow; each message's key is drawn evenly from so many, as 8 bytes or as text.
With one key, every take and every done is a call for one message. "fill" adds one message of
each key to an empty map, "drain" takes and ends them in order, 32 a call.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from bench import workloads
from bench.core.figures import Work, ours
from ordermq.core import LaneMap, contract

BATCH = workloads.CORE_BATCH
STANDING = workloads.CORE_LANE_STANDING
_POSITIONS = array("I", range(0, 8 * BATCH, 8))
_SIZES = array("I", [8]) * BATCH
Columns: TypeAlias = "tuple[array[int], array[int], array[int]]"  # offsets, tokens, keys


def made_columns(keys: list[int]) -> list[Columns]:
    """Batches of messages with these keys, offsets from 0."""
    return [
        (
            array("q", range(first, first + BATCH)),
            array("Q", range(first, first + BATCH)),
            array("Q", keys[first : first + BATCH]),
        )
        for first in range(0, len(keys), BATCH)
    ]


def drawn(keys: int, messages: int) -> list[int]:
    chance = random.Random(workloads.SEED)
    return [chance.randrange(keys) for _ in range(messages)]


def flow_of_columns(keys: int, in_flight: int) -> Work:
    """Columns in, columns out."""
    timed = workloads.CORE_LANE_MESSAGES
    ready = made_columns(drawn(keys, STANDING + timed))
    lanes = LaneMap(max_in_flight=in_flight, max_ahead=2**40)
    for offsets, tokens, names in ready[: STANDING // BATCH]:
        lanes.add_columns(offsets, tokens, names, _POSITIONS, _SIZES)
    flying = deque([lanes.take_columns(in_flight)[0]])
    ended = 0

    def run() -> None:
        nonlocal ended
        add, take, done = lanes.add_columns, lanes.take_columns, lanes.done_columns
        wanted = 0
        for offsets, tokens, names in ready[STANDING // BATCH :]:
            add(offsets, tokens, names, _POSITIONS, _SIZES)
            wanted += BATCH
            while ended < wanted:
                ended += done(flying.popleft())
                flying.append(take(in_flight)[0])

    def check() -> None:
        assert sum(map(len, flying)) == lanes.in_flight_count
        assert ended + lanes.message_count == STANDING + timed
        assert (lanes.next_offset, lanes.duplicates_ignored) == (STANDING + timed, 0)
        lanes._check()

    return Work(f"columns, {keys} keys, {in_flight} in flight", timed, run, check)


def flow_of_objects(keys: int, in_flight: int) -> Work:
    """Objects with keys of text in, objects out and ended one by one."""
    timed = workloads.CORE_LANE_MESSAGES
    names = [f"order-{key:08}" for key in drawn(keys, STANDING + timed)]
    messages = [(offset, name, object()) for offset, name in enumerate(names)]
    lanes = LaneMap(max_in_flight=in_flight, max_ahead=2**40)
    lanes.add(messages[:STANDING])
    batches = [messages[at : at + BATCH] for at in range(STANDING, len(messages), BATCH)]
    flying = deque([lanes.take(in_flight)])
    ended = 0

    def run() -> None:
        nonlocal ended
        add, take, done = lanes.add, lanes.take, lanes.done
        wanted = 0
        for batch in batches:
            add(batch)
            wanted += BATCH
            while ended < wanted:
                for offset, _ in flying.popleft():
                    ended += done(offset)
                flying.append(take(in_flight))

    def check() -> None:
        left = {offset for taken in flying for offset, _ in taken}
        assert all(messages[offset][2] is one for taken in flying for offset, one in taken)
        assert len(left) == lanes.in_flight_count
        assert ended + lanes.message_count == STANDING + timed
        lanes._check()

    return Work(f"objects, {keys} keys, {in_flight} in flight", timed, run, check)


def one_of_each(keys: int) -> list[Columns]:
    """A message of every key, in no order of the keys."""
    order = list(range(keys // BATCH * BATCH))
    random.Random(workloads.SEED).shuffle(order)
    return made_columns(order)


def fill(keys: int) -> Work:
    """One message of each key into an empty map."""
    ready = one_of_each(keys)
    made: list[contract.LaneMap] = []

    def setup() -> None:
        made[:] = [LaneMap(max_ahead=2**40)]

    def run() -> None:
        add = made[0].add_columns
        for offsets, tokens, names in ready:
            add(offsets, tokens, names, _POSITIONS, _SIZES)

    def check() -> None:
        assert made[0].key_count == made[0].ready_count == len(ready) * BATCH
        made[0]._check()

    return Work(f"fill, {keys} keys", len(ready) * BATCH, run, check, setup)


def drain(keys: int) -> Work:
    """Take and end what `fill` has put."""
    lanes = LaneMap(max_in_flight=BATCH, max_ahead=2**40)
    for offsets, tokens, names in one_of_each(keys):
        lanes.add_columns(offsets, tokens, names, _POSITIONS, _SIZES)
    messages = lanes.message_count
    ended = 0

    def run() -> None:
        nonlocal ended
        take, done = lanes.take_columns, lanes.done_columns
        while ended < messages:
            ended += done(take(BATCH)[0])

    def check() -> None:
        assert (lanes.message_count, lanes.key_count) == (0, 0)
        assert lanes.watermark == ended == messages

    return Work(f"drain, {keys} keys", messages, run, check)


def matrix() -> Iterator[tuple[str, Callable[[], Work]]]:
    """A name and a maker of every case."""
    for make in (flow_of_columns, flow_of_objects):
        for keys in workloads.CORE_LANE_KEYS:
            for in_flight in workloads.CORE_LANE_IN_FLIGHT:
                name = f"{make.__name__}-{keys}-{in_flight}"
                yield name, partial(make, keys, in_flight)
    for make_deep in (fill, drain):
        for keys in workloads.CORE_LANE_KEYS[1:]:
            yield f"{make_deep.__name__}-{keys}", partial(make_deep, keys)


def main() -> None:
    warm = ours("lane_map")
    warm.time(flow_of_columns(1_000, 32))  # warms up; its figure is not kept
    figures = ours("lane_map")
    for _, prepared in matrix():
        figures.time(prepared())
    figures.print()


if __name__ == "__main__":
    main()
