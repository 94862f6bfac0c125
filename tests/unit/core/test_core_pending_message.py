"""Unique ids, and messages that wait for their receipts; the native ones beside the reference."""

import gc
import importlib
import threading
import weakref
from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq.core import reference

CYTHON = importlib.import_module("ordermq.core._cython")  # the others have the reference's
PREFIX = "0A00000104D200000005{:08X}"
FIELDS = ("bodies", "properties", "unique_ids", "flags", "size", "key", "is_alone")
LATER = (
    "sys_flag", "fallbacks_left", "is_watched", "is_timed", "wakes_only", "is_oneway",
    "requirement", "receipts", "error", "reply_header", "awaited",
)  # fmt: skip


def prefix_of(now_ms):
    return PREFIX.format(now_ms & 0xFFFFFFFF)


def subclass_of(core):
    class Pending(core.PendingFields):
        __slots__ = ("raised",)

        def not_notified(self):
            self.raised = True

    return Pending


def nothing(pending): ...


def made(core, bodies=(b"x",), size=1, is_alone=False, on_done=nothing):
    count = range(len(bodies))
    names = [f"{i}" for i in count]
    kind = subclass_of(core)
    return kind(bodies, names, names, [*count], size, None, is_alone, on_done)


# ---- unique ids ----


@settings(max_examples=100, deadline=None)
@given(
    number=st.integers(0, 2**16),
    takes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3) | st.just(2**40))),
)
def test_ids_are_those_of_the_reference(number, takes):
    ids = CYTHON.UniqueIds(prefix_of, number)
    oracle = reference.UniqueIds(prefix_of, number)
    for count, now_ms in takes:
        assert ids.several(count, now_ms) == oracle.several(count, now_ms)
        assert ids.one(now_ms) == oracle.one(now_ms)


def test_an_id_is_a_prefix_and_a_number_of_16_bits(core):
    ids = core.UniqueIds(prefix_of, 0xFFFE)
    assert ids.several(3, 7) == [prefix_of(7) + number for number in ("FFFE", "FFFF", "0000")]
    assert ids.one(8) == prefix_of(8) + "0001"


def test_a_prefix_is_asked_for_once_per_time_and_again_after_forget(core):
    asked = []
    ids = core.UniqueIds(lambda now_ms: asked.append(now_ms) or prefix_of(now_ms))
    for now_ms in (5, 5, 6):
        ids.one(now_ms)
    ids.several(3, 6)
    ids.forget()
    ids.one(6)
    assert asked == [5, 6, 6]


@pytest.mark.parametrize("prefix", ["", "A" * 27, "A" * 29, "é" * 14, "é" * 28])
def test_a_prefix_that_is_none_is_refused_and_no_number_is_lost(core, prefix):
    given_prefix = [prefix]
    ids = core.UniqueIds(lambda now_ms: given_prefix[0])
    with pytest.raises(ValueError, match="of unique ids: expected 28 digits"):
        ids.one(0)
    given_prefix[0] = "A" * 28
    assert ids.one(0) == "A" * 28 + "0000"


def test_an_error_of_the_prefix_reaches_the_caller(core):
    def broken(now_ms):
        raise OSError("no clock")

    with pytest.raises(OSError, match="no clock"):
        core.UniqueIds(broken).one(0)


def test_threads_get_different_ids(core):
    ids, found = core.UniqueIds(prefix_of), []

    def take(now_ms):
        for i in range(300):
            found.append(ids.one(now_ms + i % 2))
            found.extend(ids.several(3, now_ms))

    threads = [threading.Thread(target=take, args=(now_ms,)) for now_ms in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one[28:] for one in found}) == len(found) == 4_800


# ---- plain sends ----


@settings(max_examples=100, deadline=None)
@given(
    body=st.binary(max_size=9) | st.binary(max_size=9).map(bytearray),
    before=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    after=st.text(max_size=5),
    flag=st.integers(-(2**31), 2**31 - 1),
    key=st.none() | st.text(max_size=3) | st.integers(),
)
def test_a_plain_message_is_that_of_the_reference(body, before, after, flag, key):
    found = []
    for core in (CYTHON, reference):
        sends = core.PlainSends(core.UniqueIds(prefix_of, 9), after, subclass_of(core))
        pending = sends.pending(body, before, flag, key, nothing, 3)
        assert type(pending.bodies[0]) is bytes
        assert pending.on_done is nothing
        found.append([getattr(pending, name) for name in FIELDS + LATER])
    assert found[0] == found[1]
    assert found[0][1] == (f"{before}{prefix_of(3)}0009{after}",)


def test_plain_messages_are_of_the_kind_that_was_asked_for(core):
    kind = subclass_of(core)
    sends = core.PlainSends(core.UniqueIds(prefix_of), "", kind)
    assert type(sends.pending(b"x", "", 0, None, nothing, 0)) is kind


def test_a_kind_that_native_code_could_not_fill_is_refused():
    with pytest.raises(TypeError, match="dict is no subclass of PendingFields"):
        CYTHON.PlainSends(CYTHON.UniqueIds(prefix_of), "", dict)


def test_a_body_that_is_none_is_refused(core):
    sends = core.PlainSends(core.UniqueIds(prefix_of), "", subclass_of(core))
    with pytest.raises(TypeError):
        sends.pending(None, "", 0, None, nothing, 0)


# ---- pending messages ----


def test_a_new_message_waits_and_its_other_fields_are_empty(core):
    pending = made(core, (b"a", b"bc"), 5)
    assert len(pending) == 2
    assert not pending.is_done
    assert [getattr(pending, name) for name in LATER] == [
        0, 0, False, False, False, False, None, None, None, None, None,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="has no receipt yet"):
        pending.receipt()


def test_fields_can_be_set(core):
    pending = made(core)
    for name in FIELDS:
        setattr(pending, name, getattr(made(core, (b"z",), 9, True), name))
    for name, value in zip(
        LATER, (1, 2, True, True, True, True, "r", ["s"], None, "h", "f"), strict=True
    ):
        setattr(pending, name, value)
        assert getattr(pending, name) == value
    assert (pending.bodies, pending.size, pending.is_alone) == ((b"z",), 9, True)


def test_the_first_outcome_counts_and_is_told_once(core):
    told = []
    pending = made(core, on_done=told.append)
    pending.finish(["receipt", "another"], None)
    pending.finish(None, OSError("late"))
    assert told == [pending]
    assert pending.is_done
    assert (pending.receipt(), pending.all_receipts()) == ("receipt", ["receipt", "another"])


def test_a_failed_message_raises_its_error(core):
    pending, error = made(core), OSError("refused")
    pending.finish(None, error)
    pending.finish(["receipt"], None)
    for read in (pending.receipt, pending.all_receipts):
        with pytest.raises(OSError, match="refused") as raised:
            read()
        assert raised.value is error


def test_a_one_way_message_is_done_without_a_receipt(core):
    pending = made(core)
    pending.finish((), None)
    assert pending.is_done
    assert pending.all_receipts() == ()


def test_an_exception_of_on_done_goes_to_the_subclass(core):
    def broken(pending):
        raise OSError("a defect")

    pending = made(core, on_done=broken)
    pending.finish(["receipt"], None)
    assert pending.raised
    assert pending.receipt() == "receipt"


def test_what_is_no_exception_of_on_done_passes(core):
    def interrupted(pending):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(core, on_done=interrupted).finish(["receipt"], None)


def test_without_a_subclass_the_exception_passes(core):
    def broken(pending):
        raise OSError("a defect")

    with pytest.raises(OSError, match="a defect"):
        core.PendingFields([], [], [], [], 0, None, False, broken).finish([], None)


def test_a_message_that_refers_to_itself_is_collected(core):
    kind = type("Pending", (core.PendingFields,), {})  # has __weakref__
    sends = core.PlainSends(core.UniqueIds(prefix_of), "", kind)
    pending = sends.pending(b"x", "", 0, None, nothing, 0)
    pending.requirement = SimpleNamespace(pending=pending)
    gone = weakref.ref(pending)
    del pending
    gc.collect()
    assert gone() is None


# ---- requests ----

MESSAGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 40), st.booleans()), min_size=1, max_size=9
)


def queue_of(core, messages):
    return deque(
        made(core, tuple(b"%d" % (number + i) for i in range(count)), size, is_alone)
        for number, (count, size, is_alone) in enumerate(messages)
    )


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES, max_bytes=st.integers(0, 100))
def test_requests_are_those_of_the_reference(messages, max_bytes):
    found = []
    for core in (CYTHON, reference):
        waiting, batches = queue_of(core, messages), []
        while waiting:
            batch = core.take_batch(waiting, max_bytes, [])
            batches.append([len(batch), *core.gathered(batch)])
        found.append(batches)
    assert found[0] == found[1]


def test_a_request_ends_before_a_message_that_stays_alone(core):
    waiting = queue_of(core, [(1, 1, False), (1, 1, False), (1, 1, True), (1, 1, False)])
    sizes = []
    while waiting:
        sizes.append(len(core.take_batch(waiting, 100, [])))
    assert sizes == [2, 1, 1]


def test_a_first_message_that_is_too_big_goes_by_itself(core):
    waiting = queue_of(core, [(1, 101, False), (1, 1, False)])
    assert [len(core.take_batch(waiting, 100, [])), len(waiting)] == [1, 1]


def test_nothing_that_waits_is_no_request(core):
    with pytest.raises(IndexError):
        core.take_batch(deque(), 100, [])


def test_messages_are_gathered_in_their_order(core):
    batch = [*queue_of(core, [(1, 1, False), (2, 1, False)])]
    batch[1].bodies = [b"list", b"too"]
    assert core.gathered(batch) == ([b"0", b"list", b"too"], ["0", "0", "1"], [0, 0, 1])


# ---- receipts ----


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), more=st.integers(-1, 1))
def test_receipts_are_those_of_the_reference(sizes, more):
    told = ",".join(f"id{i}" for i in range(sum(sizes) + more))
    found = []
    for core in (CYTHON, reference):
        batch = [made(core, (b"x",) * size) for size in sizes]
        found.append(
            core.receipts_of(
                batch, told, lambda *one: ("one", *one), lambda *several: ["several", *several],
                "queue", 40, "status", None,
            )
        )  # fmt: skip
    assert found[0] == found[1]
    if more and sum(sizes) + more:  # no id at all is one that is empty
        assert found[0] is None
    elif not more:
        assert [len(receipts) for receipts in found[0]] == [1 if n == 1 else 7 for n in sizes]
        firsts = [
            receipts[0] if n == 1 else receipts for receipts, n in zip(found[0], sizes, strict=True)
        ]
        assert [first[2] for first in firsts] == [40 + sum(sizes[:at]) for at in range(len(sizes))]


# ---- times of sends ----


@pytest.fixture(params=[CYTHON, reference], ids=["cython", "reference"])
def timing_core(request):
    return request.param


def test_a_timed_message_that_is_stored_counts_once_in_each_histogram(timing_core):
    histograms = timing_core.DurationCounts(), timing_core.DurationCounts()
    timer = timing_core.SendTimer(histograms, pytest.fail)
    pending = made(timing_core, (b"a", b"b", b"c"))
    pending.begin_timing(timer)
    assert pending.spent_ns == 0
    pending.finish([1, 2, 3], None)
    pending.finish(None, ValueError())  # later outcomes change nothing
    for counts in histograms:
        buckets, spent_ns = counts.read()
        assert sum(buckets) == 3
        assert spent_ns == 3 * pending.spent_ns > 0


def test_a_timed_message_that_fails_is_told_with_its_error(timing_core):
    told, error = [], ValueError()
    counts = timing_core.DurationCounts()
    timer = timing_core.SendTimer((counts,), lambda *arguments: told.append(arguments))
    pending = made(timing_core, (b"a", b"b"))
    pending.begin_timing(timer)
    pending.finish(None, error)
    assert told == [(error, 2, pending.spent_ns)]
    assert sum(counts.read()[0]) == 0


def test_a_caller_is_notified_of_a_message_whose_failure_cannot_be_counted(timing_core):
    notified = []

    def broken(*arguments):
        raise MemoryError

    pending = made(timing_core, on_done=notified.append)
    pending.begin_timing(timing_core.SendTimer((), broken))
    with pytest.raises(MemoryError):
        pending.finish(None, ValueError())
    assert notified == [pending]


def test_a_message_may_be_timed_without_a_histogram(timing_core):
    pending = made(timing_core)
    pending.begin_timing(None)
    pending.finish([1], None)
    assert pending.spent_ns > 0


def test_a_message_that_is_not_timed_has_no_time(timing_core):
    pending = made(timing_core)
    pending.finish([1], None)
    assert pending.spent_ns == 0
