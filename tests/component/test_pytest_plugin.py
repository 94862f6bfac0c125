"""The fixture that ships for other projects' tests."""

from __future__ import annotations

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker


def test_a_test_gets_a_broker_of_its_own(ordermq_broker: EmbeddedBroker) -> None:
    with Producer("p", name_servers=ordermq_broker.name_servers) as producer:
        assert producer.send(Message("t", b"first"), sharding_key="k").queue_offset == 0
