"""Messages of one call: those that stay together, and those that one request cannot hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.clock import ManualClock
from ordermq.config import SendConfig
from ordermq.core import take_batch
from ordermq.errors import ConfigError
from ordermq.model.message import Message
from ordermq.model.properties import decode
from ordermq.producer.accumulator import MessagePreparation
from ordermq.producer.hooks import SendCall, SendHooks
from ordermq.producer.pending_message import PendingMessage
from ordermq.producer.send_times import SendTimers


def prepared(
    messages: Sequence[Message],
    key: str | None = None,
    config: SendConfig | None = None,
    hooks: SendHooks | None = None,
) -> list[PendingMessage]:
    made = MessagePreparation(
        config or SendConfig(), hooks or SendHooks("PG", ManualClock()), SendTimers()
    )
    return made.batch(messages, key, lambda pending: None)


MESSAGES = st.lists(
    st.builds(
        Message,
        st.just("T"),
        st.one_of(
            st.binary(min_size=1, max_size=60),
            st.builds(bytearray, st.binary(min_size=1, max_size=60)),
        ),
        tags=st.sampled_from([None, "a tag"]),
        keys=st.sampled_from([(), ("k1", "k2")]),
        properties=st.sampled_from([{}, {"own": "value"}]),
        flag=st.integers(-(1 << 31), (1 << 31) - 1),
        delay_level=st.sampled_from([0, 0, 0, 0, 0, 3]),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES, st.sampled_from([None, "", "k", "k" * 5_000]), st.integers(1, 2_000))
def test_together_they_are_the_messages_one_by_one_in_order(
    messages: list[Message], key: str | None, max_batch_bytes: int
) -> None:
    config = SendConfig(max_batch_bytes=max_batch_bytes)
    made = prepared(messages, key, config)
    bodies = [body for pending in made for body in pending.bodies]
    assert bodies == [bytes(message.body) for message in messages]
    assert {type(body) for body in bodies} == {bytes}
    assert [flag for pending in made for flag in pending.flags] == [m.flag for m in messages]
    ids = [unique_id for pending in made for unique_id in pending.unique_ids]
    assert len(set(ids)) == len(messages)
    texts = [text for pending in made for text in pending.properties]
    assert texts == [m.wire_properties(key, i) for m, i in zip(messages, ids, strict=True)]
    for pending in made:
        assert pending.key == key
        assert len(pending) == 1 or pending.size <= max_batch_bytes
        assert pending.size == sum(map(len, pending.bodies)) + sum(map(len, pending.properties))


@pytest.mark.parametrize("key", ["", "é", 7, -1, "k" * 8_100, "k" * 8_191, "é" * 16_000])
def test_a_key_stands_in_front_of_the_id(key: str | int) -> None:
    message = Message("T", b"x")
    made = MessagePreparation(SendConfig(), SendHooks("PG", ManualClock()), SendTimers())
    pending = made.one(message, key, lambda pending: None)
    (text,), (unique_id,) = pending.properties, pending.unique_ids
    assert text == message.wire_properties(str(key), unique_id)
    assert (pending.key, pending.size) == (key, 1 + len(text))


@pytest.mark.parametrize("key", ["k" * 32_768, "é" * 16_384])
def test_a_key_that_is_too_long_is_refused(key: str) -> None:
    made = MessagePreparation(SendConfig(), SendHooks("PG", ManualClock()), SendTimers())
    with pytest.raises(ConfigError, match=r"properties take \d+ bytes: expected at most"):
        made.one(Message("T", b"x"), key, lambda pending: None)


@given(MESSAGES, st.integers(1, 2_000))
def test_they_are_cut_where_a_request_would_end_and_nowhere_else(
    messages: list[Message], max_batch_bytes: int
) -> None:
    config = SendConfig(max_batch_bytes=max_batch_bytes)
    made = prepared(messages, None, config)
    singly = MessagePreparation(config, SendHooks("PG", ManualClock()), SendTimers())
    waiting = deque(singly.one(message, None, lambda pending: None) for message in messages)
    requests = []
    while waiting:
        requests.append([pending.bodies[0] for pending in take_batch(waiting, max_batch_bytes, [])])
    assert [list(pending.bodies) for pending in made] == requests
    assert [pending.is_alone for pending in made if len(pending) > 1] == [False] * sum(
        len(request) > 1 for request in requests
    )


def test_a_delayed_message_is_alone_and_a_timed_one_said_to_be() -> None:
    later, timed = Message("T", b"2", delay_level=3), Message("T", b"3", delay_ms=5)
    made = prepared([Message("T", b"0"), Message("T", b"1"), later, timed, Message("T", b"4")])
    assert [list(pending.bodies) for pending in made] == [[b"0", b"1"], [b"2"], [b"3"], [b"4"]]
    assert [(pending.is_alone, pending.is_timed) for pending in made] == [
        (False, False), (True, False), (True, True), (False, False),
    ]  # fmt: skip


def test_one_that_is_too_long_refuses_all() -> None:
    config = SendConfig(max_message_bytes=1_024)
    prepared([Message("T", b"x"), Message("T", b"x" * 1_024)], config=config)
    with pytest.raises(ConfigError, match="1025 bytes: expected at most 1024"):
        prepared([Message("T", b"x"), Message("T", b"x" * 1_025)], config=config)


def test_one_whose_properties_are_too_long_refuses_all() -> None:
    long = Message("T", b"x", properties={"own": "x" * 32_767})
    with pytest.raises(ConfigError, match="message properties take 3"):
        prepared([Message("T", b"x"), long])
    with pytest.raises(ConfigError, match="message properties take 3"):
        prepared([Message("T", b"x")] * 2, key="k" * 32_767)


def test_a_key_that_would_tear_the_properties_is_refused() -> None:
    with pytest.raises(ConfigError, match="U\\+0001"):
        prepared([Message("T", b"x")] * 2, key="a\x01b")


def test_hooks_hear_of_each_message_of_a_batch_in_order() -> None:
    heard: list[tuple[str, str, object]] = []

    class Noting:
        def before(self, call: SendCall) -> None:
            heard.append(("before", call.message_id, bytes(call.message.body)))

        def after(self, call: SendCall) -> None:
            heard.append(("after", call.message_id, call.exception))

    hooks = SendHooks("PG", ManualClock())
    hooks.hooks.append(Noting())
    (pending,) = prepared([Message("T", b"1"), Message("T", b"2")], hooks=hooks)
    error = ValueError("the outcome")
    pending.finish(None, error)
    one, two = pending.unique_ids
    assert heard == [
        ("before", one, b"1"), ("before", two, b"2"), ("after", one, error), ("after", two, error),
    ]  # fmt: skip
    assert [decode(text)["UNIQ_KEY"] for text in pending.properties] == [one, two]
