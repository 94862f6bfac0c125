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
