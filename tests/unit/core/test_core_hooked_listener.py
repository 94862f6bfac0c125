"""Listener calls with hooks around them, on every core."""

import weakref
from types import SimpleNamespace

import pytest

from ordermq.core import _cython, reference

SUCCESS, IN_TIME, LATE = object(), object(), object()


class Watched:
    """Rules of hooks that keep what they are told."""

    def __init__(self, core, *, afters=(), befores=(), times_ms=(10, 17), timeout_ms=8):
        self.told = []
        self.odd = []
        self.others = []
        self._times_ms = iter(times_ms)
        self.call = type("Call", (core.HookedCall,), {"__slots__": ("__weakref__",)})
        self.group, self.namespace = "g", "n"
        self.befores = (self.before, *befores)
        self.afters = (self.after, *afters)
        self.success, self.other_success = SUCCESS, None
        self.succeeded, self.timed_out = IN_TIME, LATE
        self.timeout_ms = timeout_ms
        self.clock_ms = lambda: next(self._times_ms)
        self.clock_id = None

    def before(self, call):
        self.told.append(call)
        assert (call.result, call.exception, call.outcome) == (None, None, None)
        assert (call.done, call.spent_ms, call.notes) == (0, 0, {})
        call.notes["seen"] = call.messages

    def after(self, call):
        assert call is self.told[-1]
        assert call.notes == {"seen": call.messages}
        self.told.append((call.result, call.outcome, call.done, call.spent_ms))

    def on_odd(self, step, call, returned, error):
        self.odd.append((step, returned, error))
        if returned == "refused":
            raise ValueError("a test's own")

    def on_other(self, call, context, value, error, spent_ms):
        self.others.append((value, error, spent_ms))
        return "judged"


def context_of(core, *, ack_index=None):
    context = core.CallContext(SimpleNamespace(source="queue"), None, None, 3)
    context._ack_index = ack_index
    return context


@pytest.mark.parametrize("value", [SUCCESS, None])
@pytest.mark.parametrize(("timeout_ms", "outcome"), [(8, IN_TIME), (7, LATE)])
def test_hooks_are_told_of_a_call_that_succeeds_before_and_behind_it(
    core, value, timeout_ms, outcome
):
    watched = Watched(core, timeout_ms=timeout_ms)
    listener = core.HookedListener(lambda *_: value, watched)
    assert listener("two", context_of(core)) is value
    call = watched.told[0]
    assert (call.group, call.namespace, call.message_queue) == ("g", "n", "queue")
    assert (call.messages, call.attempt) == ("two", 3)
    assert watched.told[1:] == [(value, outcome, 3, 7)]
    assert (watched.odd, watched.others) == ([], [])


@pytest.mark.parametrize(("value", "ack_index"), [("odd", None), (SUCCESS, 0)])
def test_another_result_is_judged(core, value, ack_index):
    watched = Watched(core)
    listener = core.HookedListener(lambda *_: value, watched)
    assert listener("m", context_of(core, ack_index=ack_index)) == "judged"
    assert watched.others == [(value, None, 7)]
    assert len(watched.told) == 1


def test_an_exception_of_the_listener_is_told_and_raised_again(core):
    watched, error = Watched(core), SystemExit(3)

    def listen(messages, context):
        raise error

    with pytest.raises(SystemExit) as raised:
        core.HookedListener(listen, watched)("m", context_of(core))
    assert raised.value is error
    assert watched.others == [(None, error, 7)]


def test_an_odd_step_stops_neither_the_others_nor_the_call(core):
    error = KeyError("a test's own")

    def raises(call):
        raise error

    def refused(call):
        return "refused"

    told = []
    watched = Watched(core, befores=(raises,), afters=(refused, told.append))
    listener = core.HookedListener(lambda *_: SUCCESS, watched)
    assert listener("m", context_of(core)) is SUCCESS
    assert watched.odd[:2] == [(raises, None, error), (refused, "refused", None)]
    step, returned, second = watched.odd[2]
    assert (step, returned, str(second)) == (refused, None, "a test's own")
    assert told == watched.told[:1]


def test_a_call_goes_with_the_last_hook_that_keeps_it(core):
    watched = Watched(core)
    core.HookedListener(lambda *_: SUCCESS, watched)("m", context_of(core))
    call = weakref.ref(watched.told[0])
    watched.told.clear()
    assert call() is None


def test_listeners_around_listeners_call_each_other_on_every_core(core):
    watched, outer = Watched(core), Watched(core)
    inner = core.HookedListener(lambda *_: SUCCESS, watched)
    assert core.HookedListener(inner, outer)("m", context_of(core)) is SUCCESS
    assert len(watched.told) == len(outer.told) == 2


def test_the_native_listener_wants_its_own_calls():
    watched = Watched(_cython)
    watched.call = reference.HookedCall
    with pytest.raises(TypeError):
        _cython.HookedListener(print, watched)
    with pytest.raises(TypeError):
        _cython.HookedListener(print, Watched(_cython))("m", None)
