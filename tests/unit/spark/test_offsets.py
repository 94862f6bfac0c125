"""Offsets of a stream: canonical text, fair shares."""

import json
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.client.queue_life import QueueMark
from ordermq.errors import StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.source.offsets import StreamOffset, advance, share_fairly

QUEUES = [MessageQueue("t", "b", number) for number in range(6)]
backlogs = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 50))


def test_the_text_of_an_offset_does_not_depend_on_the_order_of_its_queues():
    draw = random.Random(1)
    whole = {MessageQueue(t, b, q): draw.randrange(1 << 60) for t in "ab" for b in "xy" for q in
             range(12)}  # fmt: skip
    texts = set()
    for _ in range(20):
        items = list(whole.items())
        draw.shuffle(items)
        texts.add(json.dumps(StreamOffset(dict(items), 7).to_json()))
    assert len(texts) == 1
    (text,) = texts
    assert json.dumps(StreamOffset.of(json.loads(text)).to_json()) == text
    assert StreamOffset.of(json.loads(text)) == StreamOffset(whole, 7)


def test_offsets_are_plain_ints_whatever_they_were_made_of():
    told = StreamOffset({QUEUES[0]: numpy.int64(5)}).to_json()
    assert json.dumps(told) == '{"t@b:0": 5}'


def test_the_offsets_of_a_thousand_queues_are_a_short_text_and_come_back():
    draw = random.Random(2)
    queues = {MessageQueue("orders", broker, q): 700_000 + draw.randrange(1_000)
              for broker in ("broker-a", "broker-b") for q in range(500)}  # fmt: skip
    del queues[MessageQueue("orders", "broker-a", 17)]
    offset = StreamOffset(queues, 7, 4)
    text = json.dumps(offset.to_json())
    assert len(text) < 4_200
    assert len(json.dumps({f"{q.topic}@{q.broker_name}:{q.queue_id}": at
                           for q, at in queues.items()})) > 6 * len(text)  # fmt: skip
    assert StreamOffset.of(json.loads(text)) == offset
    items = list(queues.items())
    draw.shuffle(items)
    assert json.dumps(StreamOffset(dict(items), 7, 4).to_json()) == text


def test_the_version_before_reads_offsets_without_packed_tasks():
    queues = {MessageQueue("t", "b", number): number for number in range(64)}
    told = StreamOffset(queues, 7).to_json()
    assert set(told) == {"@lease", *(f"t@b:{number}" for number in range(64))}
    assert StreamOffset(queues, 7, 4).to_json() == told | {"@tasks": 4, "@version": 2}
    assert StreamOffset(queues | {MessageQueue("t", "b", 64): 5}).to_json()["@version"] == 2


marks = st.builds(QueueMark, st.integers(0, 1 << 60), st.integers(0, 1 << 30), st.integers(0, 255))


@given(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 1 << 60), min_size=1),
    st.dictionaries(st.sampled_from(QUEUES), marks),
    st.frozensets(st.sampled_from(QUEUES)),
)
def test_marks_and_queues_in_a_new_life_come_back_and_older_versions_do_not_read_them(
    queues, marks, anew
):
    offset = StreamOffset(queues, 7, marks=marks, anew=anew)
    told = json.loads(json.dumps(offset.to_json()))
    assert StreamOffset.of(told) == offset
    assert told.get("@version") == (3 if marks or anew else None)


def test_the_marks_of_a_thousand_queues_are_a_short_text():
    queues = {MessageQueue("orders", "b", number): 700_000 + number for number in range(1_000)}
    marks = {queue: QueueMark(at - 1, 29_926_545, 0xABCDEF) for queue, at in queues.items()}
    assert len(json.dumps(StreamOffset(queues, marks=marks).to_json())) < 26_000


def test_the_checkpoint_of_a_later_version_is_refused():
    with pytest.raises(StateError, match=r"version 6.* reads up to 5.*later ordermq"):
        StreamOffset.of({"@version": 6, "orders": "of another form"})


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["t", "orders"]), st.sampled_from(["b", "b-2"])),
        st.integers(1, 1 << 42),
    ),
    st.booleans(),
)
def test_store_times_come_back_and_older_versions_do_not_read_them(stored, is_start):
    offset = StreamOffset({QUEUES[0]: 7}, stored=stored, is_start=is_start)
    told = json.loads(json.dumps(offset.to_json()))
    assert StreamOffset.of(told) == offset
    assert told.get("@version") == (5 if stored else 4 if is_start else None)
    assert {key for key in told if key.startswith("@stored ")} == {
        f"@stored {topic}@{broker}" for topic, broker in stored
    }


@pytest.mark.parametrize(
    "told",
    [{"0": 5}, {"t@b:0": None}, {"t@b": 1}, {"t@b:0": "x"}, {"t@b": "5"}, {"b": "1+2"}, 5, [1],
     None, {"t": {"0": 5}}, {"t@b": "1+x"}, {"@marks t@b": "1.2"}, {"@marks t": "1.2.3"},
     {"@stored t": 5}, {"@stored t@b": "5"}, {"@anew": "t"}, {"@anew": 5},
     {"t@b:0": 1.5}, {"t@b:0": True}, {"t@b:0": float("inf")},
     {"t@b:0": -5}, {"t@b:0": 1 << 63}, {"t@b": "-5+0,1"}, {"t@b:0": 1, "t@b:00": 2},
     {"t@b": "1+0,1", "t@b:1": 2}, {"t@b:-1": 5}, {"t@b:0\n": 5}, {"@tasks": 0}, {"@tasks": 1.5},
     {"@lease": -1}],
)  # fmt: skip
def test_the_checkpoint_of_another_source_is_refused(told):
    with pytest.raises(StateError, match="the checkpoint holds no offset of this source"):
        StreamOffset.of(told)


@given(backlogs, st.integers(0, 400), st.integers(0, 1_000))
def test_shares_are_fair_and_use_the_whole_limit(backlog, limit, turn):
    shares = share_fairly(backlog, limit, turn)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= shares[queue] <= waiting for queue, waiting in backlog.items())
    # Who got less than another had no more, but for one that does not divide.
    most = max(shares.values(), default=0)
    assert all(shares[q] >= most - 1 for q, waiting in backlog.items() if shares[q] < waiting)


@given(st.integers(1, 20), st.integers(1, 6))
def test_every_queue_gets_its_turn_with_a_limit_below_the_number_of_queues(rounds, count):
    start = dict.fromkeys(QUEUES[:count], 0)
    tails = dict.fromkeys(QUEUES[:count], 10**6)
    for _ in range(rounds * count):
        start = advance(start, tails, 1)
    assert set(start.values()) == {rounds}


@given(backlogs, backlogs, st.none() | st.integers(0, 100))
def test_a_stream_never_goes_back_or_loses_a_queue(start, tails, limit):
    end = advance(start, tails, limit)
    assert set(end) == set(start)
    assert all(start[queue] <= end[queue] for queue in start)
    assert all(end[queue] <= max(start[queue], tails.get(queue, 0)) for queue in start)
