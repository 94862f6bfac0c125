"""Topics whose queues were withdrawn: nothing is sent to them until they are open again."""

from __future__ import annotations

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError, OrderingError, RouteError
from ordermq.remoting.codes import RequestCode
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import eventually


def set_perm(broker: EmbeddedBroker, perm: int) -> None:
    ext = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "2",
        "writeQueueNums": "2", "perm": str(perm), "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    with WireClient(broker.port) as client:
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


@pytest.mark.parametrize("may_change", [False, True])
def test_nothing_is_sent_to_a_topic_that_lost_its_write_permission(
    broker: EmbeddedBroker, may_change: bool
) -> None:
    set_perm(broker, 6)
    with Producer(
        "shop",
        name_servers=broker.name_servers,
        route_interval_ms=50,
        allow_queue_change=may_change,
        retry_times=0,
    ) as producer:
        producer.send(Message("orders", b"1"), sharding_key="k")
        set_perm(broker, 4)

        def is_refused(key: str | None, error: type[Exception]) -> bool:
            try:
                producer.send(Message("orders", b"late"), sharding_key=key)
            except error as refusal:
                return "may be written to" in str(refusal) and "updateTopicPerm" in str(refusal)
            except BrokerError:  # the embedded broker refuses it before the route has changed
                return False
            pytest.fail("it was sent")

        eventually(lambda: is_refused("k", OrderingError), "a send with a key is refused")
        assert is_refused("other", OrderingError)
        assert is_refused(None, RouteError)
        set_perm(broker, 6)

        def is_sent() -> bool:
            try:
                producer.send(Message("orders", b"2"), sharding_key="k")
            except OrderingError:
                return False
            return True

        eventually(is_sent, "it is sent once the topic is open again")
