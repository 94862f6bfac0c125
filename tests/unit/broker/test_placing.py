"""Small decisions about a message's place (protocol 2.4, 6)."""

from __future__ import annotations

import pytest

from ordermq.broker.placing import delay_level, tag_of
from ordermq.broker.processors.send import split_batch
from ordermq.model.hashing import string_hash
from tests.component.broker.wire_client import batch_body


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        ("", None),
        ("TAGS\1TagA\2", "TagA"),
        ("KEYS\1k\2TAGS\1订单\2WAIT\1true\2", "订单"),
        ("KEYS\1k\2TAGS\1last", "last"),
        ("MYTAGS\1no\2", None),
        ("KEYS\1TAGS\2", None),
        ("TAGS\1\2KEYS\1k\2", None),
    ],
)
def test_the_tag_is_found_in_the_text(properties: str, tag: str | None) -> None:
    assert tag_of(properties.encode()) == (string_hash(tag) if tag else 0)


@pytest.mark.parametrize(
    ("text", "level"),
    [(None, 0), ("", 0), ("0", 0), ("-3", 0), ("3", 3), ("18", 18), ("19", 18), ("soon", 0)],
)
def test_delay_levels_are_clamped(text: str | None, level: int) -> None:
    assert delay_level(text) == level


def test_a_batch_is_split_into_what_was_joined() -> None:
    assert split_batch(batch_body([b"a", b"", b"ccc"], b"KEYS\1k\2")) == [
        (0, b"a", b"KEYS\1k\2"),
        (0, b"", b"KEYS\1k\2"),
        (0, b"ccc", b"KEYS\1k\2"),
    ]
