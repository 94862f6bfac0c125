"""The old clients' queue choice, against values of GCC's own std::hash<std::string> (64 bits)."""

from __future__ import annotations

import ctypes

import pytest

from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.rocketmq.sharding import by_sharding_key, hashing_queue_selector, string_hash


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", 6142509188972423790),
        ("a", 4993892634952068459),
        ("orderId", 14658593289012272564),
        ("order1", 6298644098448064334),
        ("order-1", 1888478096483860501),
        ("polygenelubricants", 17573294968806980285),
        ("12345678", 10113836418918046885),
        ("123456789abcdefg", 5023196434294505884),
        ("订单-7", 13137299777229557691),
        ("o-17", 4969998768824582741),
    ],
)
def test_a_key_hashes_as_gccs_library_hashes_it(key: str, value: int) -> None:
    assert string_hash(key.encode()) == value


def test_a_key_goes_to_its_hash_modulo_the_queues() -> None:
    queues = [MessageQueue("t", "b", number) for number in range(7)]
    assert by_sharding_key(queues, Message("t", b"x"), "o-17").queue_id == 4969998768824582741 % 7
    assert by_sharding_key(queues, Message("t", b"x"), 5) == by_sharding_key(
        queues, Message("t", b"x"), "5"
    )


@pytest.mark.parametrize(("number", "index"), [(0, 0), (5, 1), (-1, 3), (1 << 31, 0)])
def test_the_usual_selector_reads_a_c_int(number: int, index: int) -> None:
    place = ctypes.c_int(number)
    assert hashing_queue_selector(4, None, ctypes.addressof(place)) == index
