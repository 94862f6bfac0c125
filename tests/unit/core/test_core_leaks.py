"""A million operations on each native core leave memory and reference counts as they were."""

import gc
import os
import resource
import sys
from array import array
from pathlib import Path

import stored_records

from ordermq.errors import ProtocolError

OPERATIONS = 1_000_000
WARM_UP = 100_000
# A round is some 230 operations, so one object leaked in each is over 4,000 blocks, or 64 bytes
# of C over 256 KiB. Measured are 3 blocks and 0 bytes.
BLOCKS_ALLOWED = 500
RESIDENT_ALLOWED = 1 << 18  # bytes

BODY = b"".join(
    stored_records.record(offset=offset, body=b"x" * 20, properties=b"TAGS\x01a\x02KEYS\x01k\x02")
    for offset in range(8)
)


class Sentinel:
    """Stands for a message; who keeps it too long shows in its reference count."""


def resident_bytes():
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes, the most so far


def queue_round(core, sentinels):
    """Every way a message leaves a queue, and a queue freed with messages in it."""
    queue = core.ProcessQueue("leaks")
    for base in range(0, 96, 16):
        queue.put([(base + i, sentinel) for i, sentinel in enumerate(sentinels)], [9] * 16)
    queue.put([(3, sentinels[3])])  # a duplicate
    queue.take(24)
    queue.rollback()
    queue.take(16)
    queue.make_again([2, 5])
    queue.make_again_from(12)
    queue.take(4)
    queue.commit()
    queue.take(20)
    queue.remove([40, 41, 90])
    queue.commit()
    queue.clear()
    queue.reset(200)
    queue.put([(200 + i, sentinel) for i, sentinel in enumerate(sentinels)])
    queue.take(8)
    return 18


def column_round(core, offsets, tokens):
    queue = core.ProcessQueue("leaks")
    queue.put_columns(offsets, tokens)
    queue.take_columns(20)
    queue.commit()
    offset_map = core.OffsetMap()
    offset_map.put_columns(offsets, tokens)
    for offset in range(100, 140):
        offset_map.put(offset, offset)
        offset_map.get(offset)
    for offset in range(100, 120):
        offset_map.remove(offset)
    offset_map.pop_first(10)
    offset_map.columns()
    offset_map.floor(130)
    offset_map.clear()
    return 109


def lock_round(core, table, groups, queues, now_ms):
    other = core.LockTable(1000)
    for group in groups:
        table.try_lock_batch(group, queues, "owner", now_ms)
        epoch = table.try_lock(group, queues[0], "owner", now_ms)
        table.is_current(group, queues[0], "owner", epoch, now_ms)
        table.holder(group, queues[1])
        table.unlock(group, queues[0], "owner", epoch)
        table.unlock_batch(group, queues[1:3], "owner")
    other.restore(table.snapshot(), table.next_epoch)
    table.sweep(now_ms + 10_000)
    assert len(table) == 0
    return 4 + 6 * len(groups)


def index_round(core):
    index = core.MessageIndex(BODY)
    index.columns("offsets", "tag_hashes")
    positions, sizes = index.property_columns("KEYS")
    index.gather(positions, sizes, True)
    index.property_entries()
    for wrong in (sizes[1:], positions[:0]):
        try:
            index.gather(positions, wrong)
        except ValueError:
            continue
        raise AssertionError("columns of two lengths were gathered")
    for row in range(8):
        index.offset_at(row)
        view = core.MessageView(index, row)
        _ = view.body, view.properties
    return 40


def write_round(core):
    bodies, texts = [b"x" * 30] * 4, ["TAGS\x01a\x02"] * 4
    batch = core.encode_batch(bodies, texts, [0] * 4)
    writer = core.RecordWriter("t", 0, bytes(8), bytes(20))
    block = writer.write_batch(batch, sys_flag=0, born_ms=1, stored_ms=2)
    block.rows(5, 6)
    _ = block.tags
    writer.write(b"x", b"", flag=0, sys_flag=0, born_ms=1, stored_ms=2, tag=7).rows(1, 2)
    for truncated in (batch[:-1], batch + b"x"):
        try:
            writer.write_batch(truncated, sys_flag=0, born_ms=1, stored_ms=2)
        except ProtocolError:
            continue
        raise AssertionError("a truncated batch was written")
    return 12


def lane_round(core, sentinels):
    lanes = core.LaneMap()
    lanes.add([(i, b"key-%d" % (i % 4), sentinel) for i, sentinel in enumerate(sentinels)])
    lanes.park(b"key-1")
    taken = lanes.take(8)
    for offset, _ in taken[:-1]:
        lanes.done(offset)
    if taken:
        lanes.failed(taken[-1][0])
    lanes.divert(b"key-1", 2)
    lanes.unpark(b"key-1")
    lanes.take(1)
    lanes.reset(100)
    lanes.add([(100, None, sentinels[0])])
    return 9 + len(taken)


def work(core, operations, sentinels, tag):
    """Run rounds; new names in each, so that what is interned and never dropped shows."""
    offsets, tokens = array("q", range(32)), array("Q", range(32))
    table = core.LockTable(1000)
    done = 0
    number = 0
    while done < operations:
        number += 1
        done += queue_round(core, sentinels)
        done += column_round(core, offsets, tokens)
        done += lock_round(
            core, table, [f"{tag}-{number}"], ["q0", f"q-{tag}-{number}", "q2"], number * 20_000
        )
        done += index_round(core)
        done += write_round(core)
        done += lane_round(core, sentinels)


def test_a_million_operations_keep_no_memory_and_no_reference(native_core):
    sentinels = [Sentinel() for _ in range(16)]
    counts = [sys.getrefcount(sentinel) for sentinel in sentinels]
    work(native_core, WARM_UP, sentinels, "warm-up")
    gc.collect()
    blocks, resident = sys.getallocatedblocks(), resident_bytes()
    work(native_core, OPERATIONS, sentinels, "measured")
    gc.collect()
    more_blocks = sys.getallocatedblocks() - blocks
    more_resident = resident_bytes() - resident
    assert [sys.getrefcount(sentinel) for sentinel in sentinels] == counts
    assert more_blocks < BLOCKS_ALLOWED
    assert more_resident < RESIDENT_ALLOWED
