import copy
import pickle

import pytest

from ordermq.model.message_queue import MessageQueue

QUEUE = MessageQueue("Orders", "broker-a", 3)


def test_a_queue_cannot_be_changed():
    for name in ("topic", "broker_name", "queue_id", "unknown"):
        with pytest.raises(AttributeError):
            setattr(QUEUE, name, "x")


def test_queues_are_ordered_by_topic_broker_and_number():
    first = MessageQueue("A", "b", 9)
    second = MessageQueue("B", "a", 2)
    third = MessageQueue("B", "a", 10)
    last = MessageQueue("B", "b", 0)
    assert sorted([last, second, third, first]) == [first, second, third, last]
    assert second < third <= third


def test_equal_queues_are_one_key():
    equal = MessageQueue(topic="".join(["Ord", "ers"]), broker_name="broker-a", queue_id=3)
    assert equal == QUEUE
    assert {QUEUE: 1}[equal] == 1
    assert MessageQueue("Orders", "broker-a", 4) != QUEUE


def test_a_queue_has_a_short_and_a_full_representation():
    assert str(QUEUE) == f"{QUEUE}" == "Orders@broker-a/3"
    assert repr(QUEUE) == "MessageQueue(topic='Orders', broker_name='broker-a', queue_id=3)"


def test_a_queue_survives_pickle_and_copy():
    for again in (pickle.loads(pickle.dumps(QUEUE)), copy.deepcopy(QUEUE)):
        assert again == QUEUE
        assert type(again) is MessageQueue
