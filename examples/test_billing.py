"""Test a listener of yours with pytest: each test has a broker in memory.

pytest examples/test_billing.py
"""

from __future__ import annotations

import threading
from typing import Any

from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker


class Billing:
    """The code under test."""

    def __init__(self, stop_after: int) -> None:
        self.paid: list[str] = []
        self.is_complete = threading.Event()
        self._stop_after = stop_after

    def on_orders(self, messages: Any, context: Any) -> None:
        self.paid += [bytes(message.body).decode() for message in messages]
        if len(self.paid) == self._stop_after:
            self.is_complete.set()


def test_orders_are_billed_in_their_order(ordermq_broker: EmbeddedBroker) -> None:
    billing = Billing(stop_after=3)
    consumer = PushConsumer(
        "billing", name_servers=ordermq_broker.name_servers, consume_from_where="first_offset"
    )
    consumer.subscribe("orders")
    consumer.orderly(billing.on_orders)
    with consumer, Producer("shop", name_servers=ordermq_broker.name_servers) as producer:
        for step in ("placed", "paid", "shipped"):
            producer.send(Message("orders", step.encode()), sharding_key="o-17")
        assert billing.is_complete.wait(30)
    assert billing.paid == ["placed", "paid", "shipped"]
