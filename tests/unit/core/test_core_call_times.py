"""Histograms of durations and timed listeners, on every core."""

from bisect import bisect_left
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.core import _cython, reference
from ordermq.metrics.instruments import BOUNDARIES

BOUNDS = [round(bound * 1e9) for bound in BOUNDARIES]
NEAR = [bound + more for bound in BOUNDS for more in (-1, 0, 1)]


def test_a_duration_is_in_the_bucket_whose_boundary_is_not_below_it(core):
    counts = core.DurationCounts()
    expected = [0] * 15
    for ns in [0, 1, *NEAR, 10**15]:
        counts.add(ns)
        expected[bisect_left(BOUNDS, ns)] += 1
    assert counts.read() == (tuple(expected), sum(NEAR) + 10**15 + 1)


@given(st.lists(st.one_of(st.integers(0, 2 * BOUNDS[-1]), st.sampled_from(NEAR))))
def test_the_native_histogram_counts_as_the_reference(durations):
    native, plain = _cython.DurationCounts(), reference.DurationCounts()
    for counts in native, plain:
        for ns in durations:
            counts.add(ns)
        counts.add_many(*counts.read())
    assert native.read() == plain.read()


def test_equal_durations_are_counted_together(core):
    counts, one_by_one = core.DurationCounts(), core.DurationCounts()
    counts.add(7_000_000, 3)
    for _ in range(3):
        one_by_one.add(7_000_000)
    assert counts.read() == one_by_one.read()


def test_durations_that_are_counted_already_are_added(core):
    counts = core.DurationCounts()
    counts.add_many(range(15), 10**12)
    counts.add_many((1,) * 15, 1)
    assert counts.read() == (tuple(range(1, 16)), 10**12 + 1)
    for count in (14, 16):
        with pytest.raises(ValueError):
            counts.add_many([0] * count, 0)


SUCCESS = object()


def context_of(core, *, attempt=0, ack_index=None, topic="t"):
    assigned = SimpleNamespace(queue=SimpleNamespace(topic=topic))
    context = core.CallContext(assigned, None, None, attempt)
    context._ack_index = ack_index
    return context


def called(core, listener, context, by_topic):
    others = []

    def on_other(messages, context, value, error, spent_ns):
        assert spent_ns >= 0
        others.append((messages, value, error))
        return "judged"

    timed = core.TimedListener(listener, SUCCESS, None, by_topic, on_other)
    return timed("messages", context), others


@pytest.mark.parametrize("value", [SUCCESS, None])
def test_a_call_that_succeeds_at_once_is_counted_and_nobody_asked(core, value):
    counts = core.DurationCounts()
    returned, others = called(core, lambda *_: value, context_of(core), {"t": counts})
    assert (returned, others) == (value, [])
    assert sum(counts.read()[0]) == 1


def test_another_kind_of_histogram_is_given_the_duration(core):
    given_ns = []
    by_topic = {"t": SimpleNamespace(add=given_ns.append)}
    assert called(core, lambda *_: None, context_of(core), by_topic) == (None, [])
    assert len(given_ns) == 1


@pytest.mark.parametrize(
    ("value", "differs"),
    [(3, {}), (None, {"attempt": 1}), (None, {"ack_index": 0}), (SUCCESS, {"topic": "other"})],
)
def test_any_other_call_is_judged_elsewhere(core, value, differs):
    counts = core.DurationCounts()
    context = context_of(core, **differs)
    assert called(core, lambda *_: value, context, {"t": counts}) == (
        "judged", [("messages", value, None)]
    )  # fmt: skip
    assert sum(counts.read()[0]) == 0


def test_an_error_is_told_and_raised(core):
    raised, others = KeyboardInterrupt(), []

    def listener(messages, context):
        raise raised

    timed = core.TimedListener(listener, SUCCESS, None, {}, lambda *told: others.append(told[2:4]))
    with pytest.raises(KeyboardInterrupt):
        timed("messages", context_of(core))
    assert others == [(None, raised)]
