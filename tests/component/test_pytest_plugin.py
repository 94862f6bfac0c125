"""Fixtures and functions that ship for other projects' tests (docs/testing.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ordermq import ConsumeResult, FunctionCodec, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import BrokerError, ConfigError, RouteError, StateError
from ordermq.pytest_plugin import Read, WaitUntilConsumed
from ordermq.testing import concurrent_delivery, delivery
from tests.component.docs_examples import DOCS, examples, run_example

NUMBERS = FunctionCodec(lambda number: b"%d" % number, int)


def consumer_of(broker: EmbeddedBroker, **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", **settings
    )
    consumer.subscribe("t")
    return consumer


def test_a_test_gets_a_broker_of_its_own(ordermq_broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=ordermq_broker.name_servers) as producer:
        assert producer.send(Message("t", b"first"), sharding_key="k").queue_offset == 0


def test_what_was_sent_is_read_in_order_and_consumed_by_nobody(
    ordermq_broker: EmbeddedBroker, ordermq_producer: Producer, ordermq_read: Read
) -> None:
    for body in (b"placed", b"paid", b"shipped"):
        ordermq_producer.send(Message("t", body), sharding_key="o-17")
    for _ in range(2):
        messages = ordermq_read("t", 3)
        assert [m.text() for m in messages] == ["placed", "paid", "shipped"]
        assert {m.sharding_key for m in messages} == {"o-17"}
    assert len(ordermq_read("t", 1)) == 3, "all that are there"


def test_too_few_messages_in_time_are_told(ordermq_producer: Producer, ordermq_read: Read) -> None:
    with pytest.raises(AssertionError, match=r"topic nosuch: expected 1 messages .* found 0"):
        ordermq_read("nosuch", 1, timeout_s=0.02)
    ordermq_producer.send(Message("t", b"one"))
    with pytest.raises(AssertionError, match=r"expected 2 messages .* found 1: .*MessageView t@"):
        ordermq_read("t", 2, timeout_s=0.02)


def test_a_wait_ends_when_a_group_has_consumed_what_there_is(
    ordermq_broker: EmbeddedBroker,
    ordermq_producer: Producer,
    ordermq_wait_until_consumed: WaitUntilConsumed,
) -> None:
    ordermq_producer.send_many((Message("t", b"%d" % n), n) for n in range(100))
    seen: list[int] = []
    consumer = consumer_of(ordermq_broker)

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        seen.extend(int(message.text()) for message in messages)

    with consumer:
        ordermq_wait_until_consumed("g", "t")
        assert sorted(seen) == list(range(100))
    ordermq_wait_until_consumed("g", "t")  # and with no member left


def test_a_wait_for_what_is_not_consumed_tells_each_queue(
    ordermq_producer: Producer, ordermq_wait_until_consumed: WaitUntilConsumed
) -> None:
    with pytest.raises(RouteError):
        ordermq_wait_until_consumed("g", "t")
    queue = ordermq_producer.send(Message("t", b"one")).message_queue
    told = f"queue {queue.queue_id} of {queue.broker_name}: 0 of 1 are consumed, it has 0 members"
    with pytest.raises(AssertionError, match=re.escape(told)):
        ordermq_wait_until_consumed("g", "t", timeout_s=0.02)


class TestSettings:
    """A test file gives the broker other settings by a fixture of its own."""

    @pytest.fixture
    def ordermq_broker_config(self) -> BrokerConfig:
        return BrokerConfig(auto_create_topics=False)

    def test_the_broker_has_them(self, ordermq_producer: Producer) -> None:
        with pytest.raises((BrokerError, RouteError)):
            ordermq_producer.send(Message("t", b"refused"))


def test_a_listener_is_called_without_a_broker() -> None:
    events: list[tuple[Message, str | None]] = [
        (Message("t", b"1", tags="a", keys="x", properties={"p": "q"}), "k1"),
        (Message("t", b"2"), None),
    ]
    messages, context = delivery(events, attempt=2, queue_id=5, offset=40, epoch=7, codec=NUMBERS)
    assert [message.value() for message in messages] == [1, 2]
    first, second = messages
    assert (first.sharding_key, first.tags, list(first.keys)) == ("k1", "a", ["x"])
    assert (first.get_property("p"), first.offset, first.reconsume_times) == ("q", 40, 2)
    assert (second.sharding_key, second.offset, second.reconsume_times) == (None, 41, 0)
    assert first.message_id != second.message_id
    assert (context.fence_token, context.attempt, context.behind) == ((7, 40), 2, 2)
    assert context.message_queue.queue_id == 5
    assert not context.is_revoked()


def test_a_delivery_is_made_of_messages_with_and_without_keys() -> None:
    messages, _ = delivery([Message("t", b"1"), (Message("t", b"2"), "o-17"), Message("t", b"3")])
    assert [message.sharding_key for message in messages] == [None, "o-17", None]
    messages, _ = concurrent_delivery(iter([Message("t", b"1")]))
    assert [bytes(message.body) for message in messages] == [b"1"]


@pytest.mark.parametrize(
    "events",
    [
        Message("t", b"1"),
        [b"1"],
        [(Message("t", b"1"),)],
        [("k", Message("t", b"1"))],
        [(Message("t", b"1"), b"k")],
    ],
)
def test_a_delivery_says_what_it_is_made_of(events: Any) -> None:
    for make in (delivery, concurrent_delivery):
        with pytest.raises(ConfigError, match=r"expected a list of messages, or of pairs"):
            make(events)


def test_a_concurrent_listener_is_called_without_a_broker() -> None:
    def listen(messages: Any, context: Any) -> ConsumeResult:
        context.ack_index = 0
        return ConsumeResult.SUCCESS

    messages, context = concurrent_delivery([(Message("t", b"1"), None)], attempt=3)
    assert listen(messages, context) is ConsumeResult.SUCCESS
    assert (context.ack_index, messages[0].reconsume_times) == (0, 3)
    with pytest.raises(StateError, match="no fence token"):
        _ = context.fence_token


def test_a_delivery_of_nothing_or_of_two_topics_is_refused() -> None:
    for topics in ([], ["a", "b"]):
        with pytest.raises(ConfigError, match="one topic"):
            delivery([(Message(topic, b"1"), None) for topic in topics])


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    code = "\n".join(examples((DOCS / "testing.md").read_text()))
    run = f"import pytest\npytest.main(['-q', '-p', 'no:cacheprovider', '{tmp_path}/test_page.py'])"
    (tmp_path / "test_page.py").write_text(code)
    done = run_example(run, tmp_path)
    assert f"{len(re.findall(r'def test_', code))} passed" in done.stdout, done.stdout + done.stderr


def test_every_fixture_is_on_the_page() -> None:
    plugin = (DOCS.parent / "ordermq" / "pytest_plugin.py").read_text()
    page = (DOCS / "testing.md").read_text()
    missing = [
        name
        for name in re.findall(r"^def (ordermq_\w+)", plugin, re.MULTILINE)
        if f"`{name}`" not in page
    ]
    assert missing == []
