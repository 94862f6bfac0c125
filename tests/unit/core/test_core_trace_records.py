"""Records of message traces, on every core."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.core import _cython, reference
from ordermq.core.contract.trace_records import TRACE_MOST_BYTES, TRACE_MOST_KEY_BYTES
from ordermq.remoting.trace import ConsumeBegun, ConsumeEnded, Published, read
from tests.unit.core.stored_records import record

AT_MS = 1_700_000_000_000
HEAD = b"\x01region-1\x01g\x01orders\x01"


def records_of(core, *, most=100_000, enough=100_000):
    told = []
    records = core.TraceRecords(
        most, enough, lambda: told.append("enough"), lambda count: told.append(count)
    )
    return records, told


def properties(**named):
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()


def run_of(core, messages):
    class Run(core.MessageRun):
        def __iter__(self):
            return iter(self.views(core.MessageView))

    bodies = [
        record(offset=place, properties=each, reconsume_times=2)
        for place, each in enumerate(messages)
    ]
    return Run([(core.MessageIndex(b"".join(bodies)), 0, len(messages))])


def test_a_call_has_a_begin_and_an_end_for_each_message(core):
    records, told = records_of(core)
    run = run_of(core, [
        properties(UNIQ_KEY="id-1", KEYS="o-1 all", MSG_REGION="r"),
        properties(UNIQ_KEY="id-2", TRACE_ON="false"),
        properties(TRACE_ON="true", UNIQ_KEY="id-3"),
    ])  # fmt: skip
    begun_in = records.add_begun(run, b"g", "request-1", AT_MS)
    assert begun_in == 0
    assert records.add_ended(run, b"g", "request-1", begun_in, 12, False, 4, AT_MS + 1)
    assert records.waiting == 4
    text, words, count = records.take()
    assert read(text.decode()) == [
        ConsumeBegun(AT_MS, "r", "g", "request-1", "id-1", 2, "o-1 all"),
        ConsumeBegun(AT_MS, "DefaultRegion", "g", "request-1", "id-3", 2, None),
        ConsumeEnded("request-1", "id-1", 12, False, "o-1 all", 4, AT_MS + 1, "g"),
        ConsumeEnded("request-1", "id-3", 12, False, None, 4, AT_MS + 1, "g"),
    ]
    assert (words.decode().split(), count) == (["id-1", "o-1", "all", "id-3"], 4)
    assert (records.take(), records.waiting, told) == (None, 0, [])
    assert records.add_ended(run, b"g", "request-1", begun_in, 0, True, 0, AT_MS)
    assert records.take()[1].decode().split() == ["id-1", "o-1", "all", "id-3"]


@pytest.mark.parametrize(
    "unusual",
    [
        properties(KEYS="no-id"),
        properties(UNIQ_KEY="id", KEYS="a  b"),
        properties(UNIQ_KEY="id", KEYS=" a"),
        properties(UNIQ_KEY="id", KEYS="a\u3000b"),
        properties(UNIQ_KEY="id", KEYS="a\tb"),
        b"UNIQ_KEY\x01id\x02A\x01\xff\x02",
    ],
)
def test_messages_that_are_read_otherwise_add_nothing(core, unusual):
    records, _ = records_of(core)
    run = run_of(core, [properties(UNIQ_KEY="id-1"), unusual])
    assert records.add_begun(run, b"g", "request-1", AT_MS) == -1
    assert not records.add_ended(run, b"g", "request-1", 0, 0, True, 0, AT_MS)
    assert records.take() is None


def pending(text, body, core, *, is_alone=False):
    return core.PendingFields([body], [text], ["id"], [0], 1, None, is_alone, None)


def receipt(number):
    return SimpleNamespace(message_id=f"id-{number}", offset_message_id=f"offset-{number}")


def test_stored_messages_have_a_record_each_unless_they_were_sent_one_way(core):
    records, _ = records_of(core)
    texts = ["TAGS\x01paid\x02KEYS\x01o-17 all\x02UNIQ_KEY\x01id-0\x02", "", "UNIQ_KEY\x01id-2\x02"]
    batch = [pending(text, b"12345", core) for text in texts]
    receipts = [(receipt(0),), (), (receipt(2),)]
    assert records.add_published(batch, receipts, HEAD, b"10.0.0.1:10911", True, AT_MS)
    text, words, count = records.take()
    common = AT_MS, "region-1", "g", "orders"
    assert read(text.decode()) == [
        Published(*common, "id-0", "paid", "o-17 all", "10.0.0.1:10911", 5, 0, 0, "offset-0", True),
        Published(*common, "id-2", None, None, "10.0.0.1:10911", 5, 0, 0, "offset-2", True),
    ]
    assert (words.decode().split(), count) == (["id-0", "o-17", "all", "id-2"], 2)


def test_a_message_that_is_not_an_ordinary_one_is_left_to_the_caller(core):
    records, _ = records_of(core)
    batch = [pending("", b"1", core), pending("", b"2", core, is_alone=True)]
    receipts = [(receipt(0),), (receipt(1),)]
    assert not records.add_published(batch, receipts, HEAD, b"host", True, AT_MS)
    assert records.take() is None


def test_what_does_not_fit_is_dropped_together_and_counted(core):
    records, told = records_of(core, most=3)
    records.add("one\x02", "id", "a b")
    run = run_of(core, [properties(UNIQ_KEY=f"id-{place}") for place in range(3)])
    assert records.add_begun(run, b"g", "request-1", AT_MS) == 0
    assert told == [3]
    assert records.take() == (b"one\x02", b"id a b ", 1)
    records.add_begun(run, b"g", "request-1", AT_MS)
    assert (records.waiting, told) == (3, [3])
    records.add("four\x02", "id", None)
    assert told == [3, 1]


def test_many_that_wait_are_said_once_until_they_are_taken(core):
    records, told = records_of(core, enough=2)
    for _ in range(3):
        records.add("x\x02", "id", None)
    assert told == ["enough"]
    records.take()
    assert records.take() is None
    for _ in range(2):
        records.add("x\x02", "id", None)
    assert told == ["enough", "enough"]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.sampled_from(["k", "key-" * 60]),
    st.integers(0, 40),
)
def test_the_native_trace_messages_are_those_of_the_reference(sizes, key, body):
    taken = []
    for core in _cython, reference:
        records, _ = records_of(core)
        for call, size in enumerate(sizes):
            run = run_of(core, [
                properties(UNIQ_KEY=f"id-{call}-{place}", KEYS=key) for place in range(size)
            ])  # fmt: skip
            begun_in = records.add_begun(run, b"g" * body, f"request-{call}", AT_MS)
            assert records.add_ended(run, b"g", f"request-{call}", begun_in, 1, True, 0, AT_MS)
        taken.append(list(iter(records.take, None)))
    assert taken[0] == taken[1]
    for text, words, count in taken[0]:
        assert text.count(b"\x02") == count
        assert len(text) < TRACE_MOST_BYTES + 1_000
        assert len(words) < TRACE_MOST_KEY_BYTES + 1_000


SUCCESS = object()


def called(core, listener, *, timeout_ms=60_000, messages=None, ack_index=None):
    records, _ = records_of(core)
    others = []
    context = core.CallContext(None, None, None, 0)
    context._ack_index = ack_index
    times = iter([AT_MS, AT_MS + 5])
    rules = SimpleNamespace(
        records=records, group=b"g", one_id=lambda: "request-1", wall_ms=lambda: next(times),
        success=SUCCESS, other_success=None, timeout_ms=timeout_ms,
        on_begin=lambda *about: others.append(about),
        on_end=lambda *about: others.append(about) or 7,
    )  # fmt: skip
    traced = core.TracedListener(listener, rules)
    run = run_of(core, [properties(UNIQ_KEY="id-1")]) if messages is None else messages
    try:
        value = traced(run, context)
    except ValueError as error:
        value = error
    taken = records.take()
    return value, [] if taken is None else read(taken[0].decode()), others


@pytest.mark.parametrize("value", [SUCCESS, None])
def test_a_call_that_simply_succeeds_is_traced_and_nobody_asked(core, value):
    returned, records, others = called(core, lambda *_: value)
    assert (returned, others) == (value, [])
    assert records == [
        ConsumeBegun(AT_MS, "DefaultRegion", "g", "request-1", "id-1", 2, None),
        ConsumeEnded("request-1", "id-1", 0, True, None, 0, AT_MS + 5, "g"),
    ]


@pytest.mark.parametrize(
    ("value", "differs"), [(3, {}), (None, {"timeout_ms": 0}), (None, {"ack_index": 0})]
)
def test_the_end_of_any_other_call_is_recorded_elsewhere(core, value, differs):
    returned, records, ((messages, _, told, error, spent_ns, request_id),) = called(
        core, lambda *_: value, **differs
    )
    assert (returned, told, error, request_id) == (7, value, None, "request-1")
    assert spent_ns >= 0
    assert len(messages) == len(records) == 1


def test_an_error_is_told_and_raised(core):
    def listener(messages, context):
        raise ValueError("a failure")

    returned, records, (ended,) = called(core, listener)
    assert isinstance(returned, ValueError)
    assert ended[2:4] == (None, returned)
    assert len(records) == 1


def test_chosen_messages_are_recorded_elsewhere(core):
    messages = ["a message"]
    returned, records, (begun, ended) = called(core, lambda *_: None, messages=messages)
    assert (returned, records) == (7, [])
    assert begun == (messages, "request-1", AT_MS)
    assert (ended[0], ended[2], ended[5]) == (messages, None, "request-1")
