"""Which queue a key goes to (docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ConfigError
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.queue_selector import (
    ShardingKey,
    _sip_hash_24,
    go_index,
    java_index,
    selector_of,
    sha256_index,
    sip_index,
)

KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("key", "indexes"),
    [
        ("order-1", (2, 2, 6, 14)),
        ("polygenelubricants", (2, 0, 0, 0)),
        ("\U0001f600", (1, 3, 3, 3)),
        ("订单-7", (2, 1, 5, 13)),
        (-5, (2, 1, 5, 5)),
        (-(1 << 31), (2, 0, 0, 0)),
    ],
)
def test_the_java_selector_chooses_as_java_does_for_3_4_8_and_16_queues(
    key: ShardingKey, indexes: tuple[int, ...]
) -> None:
    assert tuple(java_index(key, count) for count in (3, 4, 8, 16)) == indexes


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("b", 0xE70C2DE5), ("foobar", 0xBF9CF968)],
)
def test_the_go_selector_is_fnv_1a(text: str, value: int) -> None:
    assert go_index(text, 1 << 32) == value


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (0, 0x726FDB47DD0E0E31),
        (1, 0x74F839C593DC67FD),
        (7, 0xAB0200F58B01D137),
        (8, 0x93F5F5799A932462),
        (15, 0xA129CA6149BE45E5),
    ],
)
def test_sip_hash_gives_the_values_of_its_paper(size: int, value: int) -> None:
    assert _sip_hash_24(bytes(range(size))) == value


def test_the_sip_selector_takes_the_hash_for_a_signed_long() -> None:
    # Hash of "" is 0x726f..., of the paper's 15 bytes 0xa129..., negative as a long: the
    # remainder must still be a queue, as Go's and Java's floorMod give it.
    negative = bytes(range(15)).decode()
    assert sip_index("", 3) == 0x726FDB47DD0E0E31 % 3
    assert sip_index(negative, 3) == (0xA129CA6149BE45E5 - (1 << 64)) % 3


def test_the_sha256_selector_takes_the_digest_as_one_big_number() -> None:
    digest = 0xBA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD
    assert [sha256_index("abc", count) for count in (3, 7, 16)] == [
        digest % 3,
        digest % 7,
        digest % 16,
    ]


@given(KEYS, st.integers(1, 64), st.sampled_from(["java", "go", "sip", "sha256"]))
def test_every_selector_gives_one_of_the_queues_and_always_the_same(
    key: ShardingKey, count: int, name: str
) -> None:
    queues = [MessageQueue("T", "b", number) for number in range(count)]
    message = Message("T", b"x")
    chosen = selector_of(name)(queues, message, key)
    assert chosen in queues
    assert selector_of(name)(queues, message, key) == chosen


def test_no_choice_depends_on_the_process() -> None:
    script = (
        "from ordermq.producer.queue_selector import _INDEXES as all;"
        "print([f('订单-7', 1000) for f in all.values()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_function_is_taken_as_it_is_and_an_unknown_name_is_refused() -> None:
    assert selector_of(len) is len  # type: ignore[arg-type,comparison-overlap]
    with pytest.raises(ConfigError, match=r"'rust': expected one of \['go', 'java'"):
        selector_of("rust")
