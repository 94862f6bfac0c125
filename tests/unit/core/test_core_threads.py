import sys
import threading
import time
from array import array

import pytest

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
