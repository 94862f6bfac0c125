"""Lines of a history, on every core."""

import json
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq import json_text
from ordermq.core import _cython, reference
from tests.unit.core.stored_records import record

CLOCK = time.CLOCK_MONOTONIC
BEGIN = b'{"p":"me","seq":'
HEAD = b'"queue":3,"epoch":7'


def lines_of(core, *, most_bytes=1 << 20, wake=lambda: True):
    return core.EventLines(BEGIN, CLOCK, most_bytes, wake)


def read(lines):
    return [json.loads(line) for line in lines.take().splitlines()]


def run_of(core, messages, cut=None):
    """A run of (offset, properties); in two segments if it is cut."""

    class Run(core.MessageRun):
        def __iter__(self):
            return iter(self.views(core.MessageView))

    def index(part):
        bodies = [record(offset=offset, properties=properties) for offset, properties in part]
        return core.MessageIndex(b"".join(bodies))

    parts = [part for part in (messages[:cut], messages[cut:]) if part] if cut else [messages]
    return Run([(index(part), 0, len(part)) for part in parts])


def context_of(core, messages, *, attempt=0, cut=None):
    return core.CallContext(SimpleNamespace(), None, run_of(core, messages, cut), attempt)


def key(text):
    return b"__SHARDINGKEY\x01" + text.encode() + b"\x02"


def test_lines_are_numbered_and_have_their_time(core):
    lines = lines_of(core)
    before_ns = time.clock_gettime_ns(CLOCK)
    for number in range(3):
        assert lines.add(b'"type":"OPEN","n":%d' % number)
    assert lines.waiting_bytes > 0
    found = read(lines)
    assert [(line["p"], line["seq"], line["n"]) for line in found] == [
        ("me", number, number) for number in range(3)
    ]
    times = [line["t"] for line in found]
    assert before_ns <= times[0] <= times[1] <= times[2] <= time.clock_gettime_ns(CLOCK)
    assert (lines.waiting_bytes, lines.take()) == (0, b"")


def test_a_start_and_an_end_have_offsets_and_keys(core):
    lines = lines_of(core)
    context = context_of(core, [(8, key("a")), (11, b"")], attempt=2)
    assert lines.add_start(HEAD, context, 16)
    assert lines.add_end(HEAD, context, b"DONE")
    both = {"queue": 3, "epoch": 7, "offs": [8, 11], "keys": ["a", None]}
    started, ended = read(lines)
    assert {name: started[name] for name in started if name not in ("p", "t")} == {
        "seq": 0, "type": "START", **both, "attempt": 2, "lane": 16,
    }  # fmt: skip
    assert {name: ended[name] for name in ended if name not in ("p", "t")} == {
        "seq": 1, "type": "END", **both, "done": 2, "detail": "DONE",
    }  # fmt: skip


texts = st.text(st.characters(exclude_characters="\1\2", exclude_categories=["Cs"]), min_size=1)


@given(
    st.lists(st.one_of(st.none(), texts), min_size=1, max_size=8),
    st.integers(0, 2**62),
    st.integers(0, 1000),
    st.integers(0, 1),
)
def test_native_lines_are_those_of_the_reference_and_of_a_json_library(keys, offset, attempt, cut):
    found = []
    messages = [
        (offset + place, b"" if text is None else key(text)) for place, text in enumerate(keys)
    ]
    for core in _cython, reference:
        lines = lines_of(core)
        context = context_of(core, messages, attempt=attempt, cut=cut)
        assert lines.add_start(HEAD, context)
        assert lines.add_end(HEAD, context, b"HOLD")
        taken = lines.take()
        written = taken.splitlines()
        assert [json_text.dumps(json_text.loads(line)) for line in written] == written
        found.append([{**json.loads(line), "t": 0} for line in written])
    assert found[0] == found[1]
    assert found[0][0]["keys"] == keys


def test_properties_that_are_no_text_are_left_to_the_caller_and_take_no_number(core):
    lines = lines_of(core)
    context = context_of(core, [(1, key("a")), (2, b"A\x01\xff\x02")])
    assert not lines.add_start(HEAD, context)
    assert not lines.add_end(HEAD, context, b"DONE")
    assert lines.add(b'"type":"OPEN"')
    assert [line["seq"] for line in read(lines)] == [0]


def test_what_does_not_fit_is_refused_and_only_a_line_of_its_own_leaves_a_gap(core):
    lines = lines_of(core, most_bytes=150)
    context = context_of(core, [(8, b"")])
    assert lines.add(b'"type":"%b"' % (b"x" * 200))  # of any size, where none waits
    assert not lines.add_start(HEAD, context)
    assert not lines.add_end(HEAD, context, b"DONE")
    assert not lines.add(b'"type":"OPEN"')
    assert [line["seq"] for line in read(lines)] == [0]
    assert lines.add(b'"type":"OPEN"')
    assert [line["seq"] for line in read(lines)] == [2]


def test_who_writes_is_woken_once_for_lines_that_wait_together(core):
    woken = []
    lines = lines_of(core, wake=lambda: woken.append(lines.waiting_bytes) or True)
    context = context_of(core, [(8, b"")])
    lines.add(b'"type":"OPEN"')
    lines.add_start(HEAD, context)
    assert len(woken) == 1
    assert woken[0] > 0
    lines.take()
    lines.add_end(HEAD, context, b"DONE")
    assert len(woken) == 2


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_where_nobody_could_be_woken_the_next_line_tries_it_again(core, error):
    tries = []

    def wake():
        tries.append(1)
        if error is not None:
            raise error
        return False

    lines = lines_of(core, wake=wake)
    for _ in range(2):
        if error is None:
            assert lines.add(b'"type":"OPEN"')
        else:
            with pytest.raises(error):
                lines.add(b'"type":"OPEN"')
    assert len(tries) == 2
    assert [line["seq"] for line in read(lines)] == [0, 1]


def test_closed_lines_take_no_more(core):
    lines = lines_of(core)
    lines.add(b'"type":"OPEN"')
    lines.close()
    assert lines.add(b'"type":"OPEN"')
    assert lines.add_start(HEAD, context_of(core, [(8, b"")]))
    assert lines.add_end(HEAD, context_of(core, [(8, b"")]), b"DONE")
    assert (lines.waiting_bytes, lines.take()) == (0, b"")
