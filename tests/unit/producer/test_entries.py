"""Messages become entries: what stays together, and what a request cannot hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.clock import ManualClock
from ordermq.config import SendConfig
from ordermq.errors import ConfigError
from ordermq.model.message import Message
from ordermq.model.properties import decode
from ordermq.producer.entries import Entries
from ordermq.producer.hooks import SendCall, SendHooks
from ordermq.producer.pending_message import Entry, take_batch


def entries_of(
    messages: Sequence[Message],
    key: str | None = None,
    config: SendConfig | None = None,
    hooks: SendHooks | None = None,
) -> list[Entry]:
    made = Entries(config or SendConfig(), hooks or SendHooks("PG", ManualClock()))
    return made.together(messages, key, lambda entry: None)


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
    made = entries_of(messages, key, config)
    bodies = [body for entry in made for body in entry.bodies]
    assert bodies == [bytes(message.body) for message in messages]
    assert {type(body) for body in bodies} == {bytes}
    assert [flag for entry in made for flag in entry.flags] == [m.flag for m in messages]
    ids = [unique_id for entry in made for unique_id in entry.unique_ids]
    assert len(set(ids)) == len(messages)
    texts = [text for entry in made for text in entry.properties]
    assert texts == [m.wire_properties(key, i) for m, i in zip(messages, ids, strict=True)]
    for entry in made:
        assert entry.key == key
        assert len(entry) == 1 or entry.size <= max_batch_bytes
        assert entry.size == sum(map(len, entry.bodies)) + sum(map(len, entry.properties))


@given(MESSAGES, st.integers(1, 2_000))
def test_they_are_cut_where_a_request_would_end_and_nowhere_else(
    messages: list[Message], max_batch_bytes: int
) -> None:
    config = SendConfig(max_batch_bytes=max_batch_bytes)
    made = entries_of(messages, None, config)
    singly = Entries(config, SendHooks("PG", ManualClock()))
    waiting = deque(singly.one(message, None, lambda entry: None) for message in messages)
    requests = []
    while waiting:
        requests.append([entry.bodies[0] for entry in take_batch(waiting, max_batch_bytes)])
    assert [list(entry.bodies) for entry in made] == requests
    assert [entry.is_alone for entry in made if len(entry) > 1] == [False] * sum(
        len(request) > 1 for request in requests
    )


def test_a_delayed_message_is_alone_and_a_timed_one_said_to_be() -> None:
    later, timed = Message("T", b"2", delay_level=3), Message("T", b"3", delay_ms=5)
    made = entries_of([Message("T", b"0"), Message("T", b"1"), later, timed, Message("T", b"4")])
    assert [list(entry.bodies) for entry in made] == [[b"0", b"1"], [b"2"], [b"3"], [b"4"]]
    assert [(entry.is_alone, entry.is_timed) for entry in made] == [
        (False, False), (True, False), (True, True), (False, False),
    ]  # fmt: skip


def test_one_that_is_too_long_refuses_all() -> None:
    config = SendConfig(max_message_bytes=1_024)
    entries_of([Message("T", b"x"), Message("T", b"x" * 1_024)], config=config)
    with pytest.raises(ConfigError, match="1025 bytes: expected at most 1024"):
        entries_of([Message("T", b"x"), Message("T", b"x" * 1_025)], config=config)


def test_one_whose_properties_are_too_long_refuses_all() -> None:
    long = Message("T", b"x", properties={"own": "x" * 32_767})
    with pytest.raises(ConfigError, match="message properties take 3"):
        entries_of([Message("T", b"x"), long])
    with pytest.raises(ConfigError, match="message properties take 3"):
        entries_of([Message("T", b"x")] * 2, key="k" * 32_767)


def test_a_key_that_would_tear_the_properties_is_refused() -> None:
    with pytest.raises(ConfigError, match="U\\+0001"):
        entries_of([Message("T", b"x")] * 2, key="a\x01b")


def test_hooks_hear_of_each_message_of_a_batch_in_order() -> None:
    heard: list[tuple[str, str, object]] = []

    class Noting:
        def before(self, call: SendCall) -> None:
            heard.append(("before", call.message_id, bytes(call.message.body)))

        def after(self, call: SendCall) -> None:
            heard.append(("after", call.message_id, call.exception))

    hooks = SendHooks("PG", ManualClock())
    hooks.hooks.append(Noting())
    (entry,) = entries_of([Message("T", b"1"), Message("T", b"2")], hooks=hooks)
    error = ValueError("the outcome")
    entry.finish(None, error)
    one, two = entry.unique_ids
    assert heard == [
        ("before", one, b"1"), ("before", two, b"2"), ("after", one, error), ("after", two, error),
    ]  # fmt: skip
    assert [decode(text)["UNIQ_KEY"] for text in entry.properties] == [one, two]
