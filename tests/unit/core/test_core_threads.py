import struct
import sys
import threading
import time
import zlib
from array import array
from contextlib import suppress

import pytest

from ordermq.core import _cython
from tests.unit.core.stored_records import record

ROUNDS_S = 0.4  # how long each test hammers


@pytest.fixture(autouse=True)
def _restless_interpreter():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Batch:
    def __init__(self, start, count):
        self.offsets = array("q", range(start, start + count))
        self.body_sizes = array("I", [1]) * count

    def __getitem__(self, index):
        return self.offsets[index]


def hammer(*workers):
    """Run each worker in a thread of its own until it returns; raise what one raised."""
    failures = []

    def guarded(worker):
        try:
            worker()
        except BaseException as failure:  # noqa: BLE001 (raised in the test's thread)
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if failures:
        raise failures[0]


def test_one_consumer_at_a_time_sees_every_message_in_order(core):
    queue = core.ProcessQueue("hammered")
    turns = threading.Semaphore(0)
    inside = threading.Lock()
    seen, committed = [], []
    produced = threading.Event()

    def produce():
        start = 0
        deadline = time.monotonic() + ROUNDS_S
        while time.monotonic() < deadline:
            if queue.message_count < 500:
                if queue.put_batch(Batch(start, 32)):
                    turns.release()
                start += 32
        produced.total = start
        produced.set()

    def consume():
        deadline = time.monotonic() + 20
        while not (produced.is_set() and len(seen) >= produced.total):
            assert time.monotonic() < deadline, "a wake-up was lost"
            if not turns.acquire(timeout=0.01):
                continue
            # An empty take ends the request: from then on another thread may be inside.
            while segments := queue.take_segments(24):
                assert inside.acquire(blocking=False), "two consume requests at once"
                for batch, first, count in segments:
                    seen.extend(batch[i] for i in range(first, first + count))
                committed.append(queue.commit())
                ends_early = len(committed) % 5 == 0
                inside.release()
                if ends_early:
                    queue.end_dispatch()
                    break
            queue._check()
            if queue.begin_dispatch():
                turns.release()

    hammer(produce, consume, consume, consume)
    assert seen == list(range(produced.total))
    assert committed == sorted(committed)
    assert committed[-1] == produced.total
    assert (queue.message_count, queue.duplicates_ignored) == (0, 0)
    queue._check()


def test_puts_takes_and_retreats_together_keep_every_invariant(core):
    queue = core.ProcessQueue()
    deadline = time.monotonic() + ROUNDS_S

    def until_deadline(work):
        def run():
            step = 0
            while time.monotonic() < deadline:
                work(step)
                step += 1

        return run

    def retreat(step):
        queue.rollback() if step % 2 else queue.make_again_from(step)

    hammer(
        until_deadline(lambda step: queue.put_batch(Batch(step * 20 % 4000, 50))),
        until_deadline(lambda step: queue.put([(step % 4000, "one")])),
        until_deadline(lambda step: queue.take(40)),
        until_deadline(retreat),
        until_deadline(lambda step: queue.remove(range(step % 4000, step % 4000 + 30))),
        until_deadline(lambda step: queue.reset(0) if step % 50 == 0 else queue._check()),
    )
    queue.clear()
    queue._check()
    assert queue.size_bytes == 0


def test_bulk_calls_without_the_gil_lose_nothing(native_core):
    queue = native_core.ProcessQueue()
    size, rounds = 5_000, 20
    taken = []

    def put(first):
        def run():
            for number in range(first, rounds, 2):
                offsets = array("q", range(number * size, (number + 1) * size))
                queue.put_columns(offsets, array("Q", offsets))

        return run

    def take():
        while len(taken) < size * rounds:
            offsets, tokens = queue.take_columns(size)
            assert offsets.tolist() == tokens.tolist()
            taken.extend(offsets)

    hammer(put(0), put(1), take)
    assert sorted(taken) == list(range(size * rounds))
    queue._check()


def test_one_owner_at_a_time_holds_a_lock(core):
    table = core.LockTable(lease_ms=1_000)
    queues = [f"q{i}" for i in range(8)]
    holding = dict.fromkeys(queues)
    epochs = []
    deadline = time.monotonic() + ROUNDS_S

    def compete(owner):
        def run():
            while time.monotonic() < deadline:
                for queue, epoch in zip(
                    queues, table.try_lock_batch("g", queues, owner, 0), strict=True
                ):
                    if epoch:
                        assert holding[queue] is None, "two owners"
                        holding[queue] = owner
                        epochs.append(epoch)
                        assert table.is_current("g", queue, owner, epoch, 0)
                        holding[queue] = None
                        assert table.unlock("g", queue, owner, epoch)
                table.sweep(0)

        return run

    hammer(*(compete(f"member-{i}") for i in range(3)))
    assert len(set(epochs)) == len(epochs)
    assert len(table) == 0
    table._check()


def test_workers_on_one_lane_map_keep_every_keys_order(core):
    """Workers fail and hurry each other; a feeder delivers some again; a third thread parks."""
    lanes = core.LaneMap("hammered", max_in_flight=8, max_ahead=400, keyless="lane")
    keys = [None, "a", "b", b"c", "long" * 20, *(f"key-{i}" for i in range(20))]
    running = {key: threading.Lock() for key in keys}
    seen = {key: [] for key in keys}
    produced = threading.Event()
    over = threading.Event()

    def produce():
        start = 0
        deadline = time.monotonic() + ROUNDS_S
        while time.monotonic() < deadline:
            if not lanes.is_full:
                again = max(start - 3, 0)
                rows = ((o, keys[o * o % 97 % len(keys)], None) for o in range(again, start + 20))
                lanes.add([(o, key, (o, key)) for o, key, _ in rows])
                start += 20
        produced.total = start
        produced.set()

    def work():
        deadline = time.monotonic() + 20
        step = 0
        while not over.is_set():
            assert time.monotonic() < deadline, "lanes are stuck"
            for offset, (number, key) in lanes.take(3):
                step += 1
                assert offset == number
                assert running[key].acquire(blocking=False), "two of a key at once"
                fails = step % 7 == 0
                if not fails:
                    seen[key].append(offset)
                running[key].release()
                assert lanes.failed(offset) if fails else lanes.done(offset)
            if produced.is_set() and lanes.message_count == 0:
                over.set()

    def park():
        step = 0
        while not over.is_set():
            lanes.park(keys[1 + step % 20])
            lanes._check()
            lanes.unpark(keys[1 + step % 20])
            step += 1

    hammer(produce, work, work, work, park)
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert sorted(o for offsets in seen.values() for o in offsets) == list(range(produced.total))
    assert (lanes.watermark, lanes.key_count) == (produced.total, 0)
    lanes._check()


def test_resets_under_workers_never_run_a_key_beside_its_old_flight(core):
    lanes = core.LaneMap(max_in_flight=6, max_ahead=10_000)
    running = {f"key-{i}": threading.Lock() for i in range(8)}
    deadline = time.monotonic() + ROUNDS_S

    def until_deadline(act):
        def run():
            step = 0
            while time.monotonic() < deadline:
                act(step)
                step += 1

        return run

    def add(step):
        start = lanes.next_offset
        rows = [(o, f"key-{o % 8}", f"key-{o % 8}") for o in range(start, start + 30)]
        if lanes.message_count < 300:
            lanes.add(rows)  # what a reset has overtaken is a duplicate, or a gap

    def work(step):
        for offset, key in lanes.take(2):
            assert running[key].acquire(blocking=False), "a key runs while its old flight does"
            assert key == f"key-{offset % 8}"
            running[key].release()
            assert lanes.done(offset)

    def reset(step):
        if step % 20 == 0:
            lanes.reset(max(lanes.watermark - 50, 0))
        lanes._check()

    hammer(*map(until_deadline, (add, work, work, work, reset)))
    lanes.reset(0)
    assert (lanes.message_count, lanes.in_flight_count, lanes.key_count) == (0, 0, 0)
    lanes._check()


def test_bulk_lane_calls_without_the_gil_lose_nothing(native_core):
    size, rounds = 5_000, 8
    lanes = native_core.LaneMap(max_in_flight=size, max_ahead=size * rounds)
    positions = array("I", range(0, 8 * size, 8))
    sizes = array("I", [8]) * size
    taken = []

    def add():
        for number in range(rounds):
            tokens = array("Q", range(number * size, (number + 1) * size))
            lanes.add_columns(array("q", tokens), tokens, tokens, positions, sizes)

    def take():
        deadline = time.monotonic() + 20
        while len(taken) < size * rounds:
            assert time.monotonic() < deadline, "lanes are stuck"
            offsets, tokens = lanes.take_columns(size)
            assert offsets.tolist() == tokens.tolist()
            taken.extend(offsets)
            assert lanes.done_columns(offsets) == len(offsets)

    hammer(add, take, take)
    assert sorted(taken) == list(range(size * rounds))
    assert (lanes.watermark, lanes.key_count) == (size * rounds, 0)
    lanes._check()


def test_an_interned_id_stays_its_name_while_others_sweep(core):
    table = core.LockTable(lease_ms=1_000)
    shared = [f"q{i}" for i in range(8)]
    deadline = time.monotonic() + ROUNDS_S

    def until_deadline(work):
        def run():
            while time.monotonic() < deadline:
                work()

        return run

    def intern_and_release(owner):
        def step():
            group, me = table.intern("g"), table.intern(owner)
            ids = array("Q", [table.intern(queue) for queue in shared])
            epochs = table.try_lock_ids(group, ids, me, 0)
            assert [table.name_of(number) for number in ids] == shared
            for queue, epoch in zip(shared, epochs, strict=True):
                assert not epoch or table.holder("g", queue)[:2] == (owner, epoch)
            held = [bool(epoch) for epoch in epochs]
            assert table.unlock_ids(group, ids, me, epochs).tolist() == held
            for used in (group, me, *ids):
                table.release(used)

        return step

    def lock_by_name():
        for queue, epoch in zip(shared, table.try_lock_batch("h", shared, "x", 0), strict=True):
            assert epoch
            assert table.unlock("h", queue, "x", epoch)

    hammer(
        until_deadline(intern_and_release("a")),
        until_deadline(intern_and_release("b")),
        until_deadline(lock_by_name),
        until_deadline(lambda: (table.sweep(0), table.snapshot())),
    )
    table._check()
    assert table.sweep(0) == []
    assert len(table) == 0


def repeatedly(work):
    """Return a worker that calls work(step) again and again for ROUNDS_S."""

    def run():
        deadline = time.monotonic() + ROUNDS_S
        step = 0
        while time.monotonic() < deadline:
            work(step)
            step += 1

    return run


def test_a_batch_is_there_when_its_messages_are_taken(core):
    queue = core.ProcessQueue()
    batches = [Batch(start, 8) for start in range(0, 8 * 20_000, 8)]
    put, taken = [], []

    def put_next(step):
        if queue.message_count == 0 and len(put) < len(batches):
            put.append(batches[len(put)])
            queue.put_batch(put[-1])

    def take_all(step):
        for batch, first, count in queue.take_segments(24):
            taken.extend(batch[i] for i in range(first, first + count))
            queue.commit()
        if not queue.message_count:
            time.sleep(0)  # lets the other thread have the core's mutex

    hammer(repeatedly(put_next), repeatedly(take_all))
    while segments := queue.take_segments(24):
        for batch, first, count in segments:
            taken.extend(batch[i] for i in range(first, first + count))
    assert taken == list(range(8 * len(put)))


def test_threads_on_one_offset_map_each_find_what_they_put(core):
    held = core.OffsetMap()
    threads = 4

    def own(residue):
        mine = range(residue, 400 * threads, threads)

        def work(step):
            if step % 2:
                held.put_columns(array("q", mine), array("Q", mine))
            else:
                for offset in mine:
                    held[offset] = offset
            assert [held.get(offset) for offset in mine] == list(mine)
            offsets, tokens = held.columns()
            assert offsets.tolist() == tokens.tolist()
            found = list(held)
            assert found == sorted(found)
            assert set(mine) <= set(found)
            for offset in mine:
                assert held.remove(offset)

        return repeatedly(work)

    hammer(*(own(residue) for residue in range(threads)))
    assert len(held) == 0
    held._check()


def test_an_offset_popped_by_one_thread_is_popped_by_no_other(core):
    held = core.OffsetMap()
    size, rounds = 200, 40
    popped = []
    produced = threading.Event()

    def produce():
        for number in range(rounds):
            for offset in range(number * size, (number + 1) * size):
                held[offset] = offset
        produced.set()

    def pop():
        deadline = time.monotonic() + 20
        while not (produced.is_set() and len(held) == 0):
            assert time.monotonic() < deadline
            popped.extend(held.pop_first(100))

    hammer(produce, pop, pop)
    assert sorted(popped) == [(offset, offset) for offset in range(size * rounds)]


def compressed_and_plain(count):
    """Return a pull body, half of it compressed, and each message's body and tag."""
    bodies = [b"body %d" % i * 20 for i in range(count)]
    records = [
        record(
            offset=i,
            body=zlib.compress(body) if i % 2 else body,
            sys_flag=i % 2,
            properties=b"TAGS\1tag-%d\2KEYS\1key-%d\2" % (i, i),
        )
        for i, body in enumerate(bodies)
    ]
    return b"".join(records), [(body, f"tag-{i}") for i, body in enumerate(bodies)]


def test_threads_read_the_same_index_and_views(core):
    pulled, expected = compressed_and_plain(40)
    start = threading.Barrier(3)

    def read(shared):
        def run():
            for index, views in shared:
                start.wait(20)
                assert [(bytes(view.body), view.tags) for view in views] == expected
                assert [view.properties["TAGS"] for view in views] == [t for _, t in expected]
                again = list(index.views(core.MessageView, 0, len(index)))
                assert [bytes(view.body) for view in again] == [body for body, _ in expected]
                # What is kept from the first read is one object, whoever read it first.
                assert all(view.properties is view.properties for view in views)

        return run

    shared = []
    for _ in range(60):
        index = core.MessageIndex(pulled)
        shared.append((index, list(index.views(core.MessageView, 0, len(index)))))
    hammer(*[read(shared)] * 3)


def test_threads_that_share_an_iterator_get_each_message_once():
    pulled, _ = compressed_and_plain(300)
    index = _cython.MessageIndex(pulled)
    several = _cython.MessageRun([(index, i, 20) for i in range(0, 300, 20)])
    found = []

    def drain(iterator, offsets_of):
        def run():
            for item in iterator:
                found.extend(offsets_of(item))

        return run

    for _ in range(30):
        for iterator, offsets_of in [
            (index.views(_cython.MessageView, 0, 300), lambda view: [view.queue_offset]),
            (several.cut(_cython.MessageRun, 7), lambda run: run.offsets()),
        ]:
            found.clear()
            hammer(*[drain(iterator, offsets_of)] * 3)
            assert sorted(found) == list(range(300))


def test_a_list_may_change_while_it_is_put(core):
    pairs = [(i, f"message {i}") for i in range(40)]
    sizes = [10] * 40
    taken = []

    def change(step):
        del pairs[step % 40 :], sizes[step % 40 :]
        pairs.extend((i, f"message {i}") for i in range(len(pairs), 40))
        sizes.extend([10] * (40 - len(sizes)))

    def put(step):
        queue = core.ProcessQueue()
        # Refused: lists of different lengths, or a change that was noticed.
        with suppress(ValueError, RuntimeError):
            queue.put(pairs, sizes)
        queue._check()
        found = queue.take(100)
        assert found == [f"message {i}" for i in range(len(found))]
        taken.append(len(found))

    hammer(repeatedly(change), repeatedly(put), repeatedly(put))
    put(0)  # the threads may have met changes each time; the lists are whole again
    assert taken[-1] == 40


def test_a_context_is_read_while_threads_of_its_listener_set_it(core):
    context = core.CallContext(None, None, None, 0)

    def change(step):
        context._suspend_ms = [f"pause {step}", step]
        context._ack_index = [f"end {step}", step]
        context._delay_level = [f"level {step}", step]

    def read(step):
        for value in (context._suspend_ms, context._ack_index, context._delay_level):
            assert value in (None, 0, -1) or len(value) == 2

    hammer(repeatedly(change), repeatedly(change), repeatedly(read), repeatedly(read))


def test_frames_added_by_several_threads_stay_whole():
    stream = _cython.FrameStream(1 << 20)
    wanted = 3 * 2_000
    found = []

    def add(mark):
        def run():
            header, body = bytes([mark]) * 20, bytes([mark]) * 3_000
            frame = struct.pack(">iI", len(header) + len(body) + 4, len(header)) + header + body
            for _ in range(2_000):
                stream.add(frame)

        return run

    def take():
        deadline = time.monotonic() + 25
        while len(found) < wanted:
            assert time.monotonic() < deadline
            frame = stream.frame()
            if frame is not None:
                found.append((frame[1], frame[2]))
                stream.drop()

    hammer(add(1), add(2), add(3), take)
    assert all(set(header) == set(body) and len(body) == 3_000 for header, body in found)
    assert stream.buffered_bytes == 0
