"""Sends to a proxy that has no broker for a while."""

from __future__ import annotations

import threading

import pytest

from ordermq import Message, Producer
from ordermq.errors import ConnectFailed, KeyFailed, RequestTimeout, RequestTooLarge
from ordermq.grpc.messages import (
    Address,
    Broker,
    Code,
    Endpoints,
    Permission,
    QueryRouteRequest,
    QueryRouteResponse,
    Queue,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from tests.component.grpc_server import Asked, Said, grpc_server_thread

NOT_FOUND = Status(code=Code.TOPIC_NOT_FOUND, message="No topic route info in name server")
# As a proxy of 5.3.3 answers while it cannot ask a broker for the topic.
NO_TYPE = Status(
    code=Code.MESSAGE_TYPE_CONFLICT,
    message="TopicMessageType validate failed, the expected type is UNSPECIFIED, but actual type "
    "is FIFO",
)


class Proxy:
    """A proxy whose only broker is away for the first `refusals` sends."""

    def __init__(self, refusals: int, refusal: Status = NOT_FOUND, queues: int = 1) -> None:
        self.refusals = refusals
        self.refusal = refusal
        self.queues = queues
        self.sends = 0

    def __call__(self, asked: Asked) -> Said | None:
        method = asked.headers[":path"].rpartition("/")[2]
        if method == "QueryRoute":
            return self.route(asked)
        if method != "SendMessage":
            return None
        self.sends += 1
        if self.sends <= self.refusals:
            return Said((SendMessageResponse(status=self.refusal).to_bytes(),))
        entry = SendResultEntry(status=Status(code=Code.OK), message_id="01", offset=self.sends)
        entries = [entry] * len(SendMessageRequest.from_bytes(asked.message).messages)
        return Said((SendMessageResponse(status=Status(code=Code.OK), entries=entries).to_bytes(),))

    def route(self, asked: Asked) -> Said:
        request = QueryRouteRequest.from_bytes(asked.message)
        assert request.topic is not None
        assert request.endpoints is not None
        if request.topic.name != "orders":
            return Said((QueryRouteResponse(status=NOT_FOUND).to_bytes(),))
        place = Endpoints(scheme=1, addresses=[Address(host="10.255.0.1", port=1)])
        place.addresses += request.endpoints.addresses
        broker = Broker(name="a", endpoints=place)
        queues = [
            Queue(id=number, permission=Permission.READ_WRITE, broker=broker)
            for number in range(self.queues)
        ]
        answer = QueryRouteResponse(status=Status(code=Code.OK), message_queues=queues)
        return Said((answer.to_bytes(),))


@pytest.mark.parametrize("refusal", [NOT_FOUND, NO_TYPE])
def test_a_send_waits_for_a_broker_that_is_away(refusal: Status) -> None:
    proxy = Proxy(2, refusal)
    with (
        grpc_server_thread(proxy) as address,
        Producer("shop", name_servers=f"grpc://{address}", retry_delay_ms=1) as producer,
    ):
        receipt = producer.send(Message("orders", b"a"), sharding_key="k")
        assert receipt.queue_offset == 3


def test_keys_of_a_queue_do_not_wait_for_each_other_and_a_key_waits_for_itself() -> None:
    proxy = Proxy(refusals=0)
    groups: list[str] = []

    def answering(asked: Asked) -> Said | None:
        if not asked.headers[":path"].endswith("SendMessage"):
            return proxy(asked)
        [message] = SendMessageRequest.from_bytes(asked.message).messages
        assert message.system_properties is not None
        group = message.system_properties.message_group
        assert group is not None
        groups.append(group)
        return None if group == "held" else proxy(asked)

    with (
        grpc_server_thread(answering) as address,
        Producer(
            "shop", name_servers=f"grpc://{address}", retry_times=0, send_timeout_ms=1_000
        ) as producer,
    ):
        producer.send(Message("orders", b"first"), sharding_key="warm")
        held = [producer.send_nowait(Message("orders", b"x"), sharding_key="held") for _ in "ab"]
        for key in ("free", "other"):
            producer.send(Message("orders", b"x"), sharding_key=key)
        with pytest.raises(RequestTimeout):
            held[0].result(30.0)
        with pytest.raises(KeyFailed):
            held[1].result(30.0)
    assert sorted(groups) == ["free", "held", "other", "warm"]


def test_messages_without_a_key_that_wait_leave_together_whatever_the_queues_are() -> None:
    proxy = Proxy(refusals=0, queues=8)
    asked, goes_on = threading.Event(), threading.Event()
    sizes: list[int] = []

    def answering(request: Asked) -> Said | None:
        if request.headers[":path"].endswith("SendMessage"):
            sizes.append(len(SendMessageRequest.from_bytes(request.message).messages))
            asked.set()
            assert goes_on.wait(20)
        return proxy(request)

    with (
        grpc_server_thread(answering) as address,
        Producer("shop", name_servers=f"grpc://{address}") as producer,
    ):
        first = producer.send_nowait(Message("orders", b"first"))
        assert asked.wait(20)
        others = [producer.send_nowait(Message("orders", b"x")) for _ in range(20)]
        goes_on.set()
        receipts = [each.result(20.0) for each in (first, *others)]
    assert sizes == [1, 20]
    assert {receipt.message_queue.queue_id for receipt in receipts} == {-1}


# As a proxy of 5.5.0 hands on what its brokers say of a request with several messages, and of one.
TOGETHER = Status(
    code=50001, message="java.lang.RuntimeException: message body size exceeded, MessageExtEncoder"
)
ALONE = Status(
    code=50001,
    message="the message is illegal, maybe msg body or properties length not matched. msg body "
    "length limit 20000B, msg properties length limit 32KB.",
)
AT_THE_PROXY = Status(code=Code.MESSAGE_BODY_TOO_LARGE, message="message body size exceeded")


@pytest.mark.parametrize("too_large", [TOGETHER, ALONE, AT_THE_PROXY])
def test_what_was_joined_is_taken_apart_where_a_broker_refuses_it_for_its_size(
    too_large: Status,
) -> None:
    proxy = Proxy(refusals=0, queues=8)
    asked, goes_on = threading.Event(), threading.Event()

    def answering(request: Asked) -> Said | None:
        if request.headers[":path"].endswith("SendMessage"):
            asked.set()
            assert goes_on.wait(20)
            messages = SendMessageRequest.from_bytes(request.message).messages
            if sum(len(each.body) for each in messages) > 20_000:
                return Said((SendMessageResponse(status=too_large).to_bytes(),))
        return proxy(request)

    with (
        grpc_server_thread(answering) as address,
        Producer(
            "shop", name_servers=f"grpc://{address}", compress_msg_body_over_howmuch=1 << 20
        ) as producer,
    ):
        first = producer.send_nowait(Message("orders", b"first"))
        assert asked.wait(20)
        others = [producer.send_nowait(Message("orders", bytes(5_000))) for _ in range(20)]
        large = producer.send_nowait(Message("orders", bytes(30_000)))
        goes_on.set()
        for each in (first, *others):
            assert each.result(20.0).queue_offset > 0
        with pytest.raises(RequestTooLarge, match="send less per request"):
            large.result(20.0)


def test_a_broker_that_stays_away_is_reported_as_such() -> None:
    proxy = Proxy(refusals=1_000)
    with (
        grpc_server_thread(proxy) as address,
        Producer(
            "shop", name_servers=f"grpc://{address}", retry_delay_ms=1, retry_times=2
        ) as producer,
    ):
        with pytest.raises(ConnectFailed, match=r"brokers are away.*No topic route"):
            producer.send(Message("orders", b"a"), sharding_key="k")
        assert proxy.sends == 3
