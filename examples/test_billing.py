"""Test a consumer of yours with pytest: each test has a broker in memory.

pip install ordermq pytest
pytest examples/test_billing.py
"""

from __future__ import annotations

from collections.abc import Sequence

from ordermq import ConsumeContext, ConsumeResult, Message, MessageView, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.pytest_plugin import WaitUntilConsumed
from ordermq.testing import delivery


class Billing:
    """The code under test."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def on_orders(
        self, messages: Sequence[MessageView], context: ConsumeContext
    ) -> ConsumeResult | None:
        if messages[0].text() == "malformed" and context.attempt < 3:
            return ConsumeResult.SUSPEND
        self.paid += [message.text() for message in messages]
        return None


def test_orders_are_billed_in_their_order(
    ordermq_broker: EmbeddedBroker,
    ordermq_producer: Producer,
    ordermq_wait_until_consumed: WaitUntilConsumed,
) -> None:
    billing = Billing()
    consumer = PushConsumer(
        "billing", name_servers=ordermq_broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")
    consumer.orderly(billing.on_orders)
    with consumer:
        for step in ("placed", "paid", "shipped"):
            ordermq_producer.send(Message("orders", step.encode()), sharding_key="o-17")
        ordermq_wait_until_consumed("billing", "orders")
    assert billing.paid == ["placed", "paid", "shipped"]


def test_a_malformed_order_is_tried_three_times_more() -> None:
    event = (Message("orders", b"malformed"), "o-17")
    for attempt in range(4):
        result = Billing().on_orders(*delivery([event], attempt=attempt))
        assert (result is None) == (attempt == 3)
