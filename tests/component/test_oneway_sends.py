"""A one-way send takes the path of all sends: order, failed keys, timers, unit mode, hooks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

from ordermq import Message, Producer, PullConsumer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import ConfigError, KeyFailed, RequestTimeout, StateError
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.hooks import SendCall
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.connection import Connection
from tests.component.conftest import Seen, eventually

ROUNDS = 200
LARGE = b"x" * 5_000  # compressed, so the request in front is still being made


def stored(broker: EmbeddedBroker, queue: MessageQueue) -> list[bytes]:
    """The bodies of a queue, in order."""
    bodies: list[bytes] = []
    with PullConsumer("reader", name_servers=broker.name_servers) as reader:
        while messages := reader.pull(queue, "*", len(bodies), 32).messages:
            bodies += [bytes(message.body) for message in messages]
    return bodies


@pytest.mark.parametrize("named", ["key", "queue"])
def test_no_one_way_send_overtakes_an_earlier_send_of_its_key_or_queue(
    broker: EmbeddedBroker, producer: Producer, named: str
) -> None:
    queue = producer.send(Message("orders", b"first"), sharding_key="k").message_queue

    async def work() -> None:
        for number in range(ROUNDS):
            bodies = [f"{number}.0".encode(), LARGE]
            sends = [
                asyncio.ensure_future(producer.asend(Message("orders", body), queue=queue))
                for body in bodies
            ]
            await asyncio.sleep(0)  # both are handed in
            message = Message("orders", f"{number}.1".encode())
            if named == "key":
                producer.send_oneway(message, sharding_key="k")
            else:
                producer.send_oneway(message, queue=queue)
            await asyncio.gather(*sends)

    asyncio.run(work())
    producer.send(Message("orders", b"last"), sharding_key="k")
    expected = [b"first"]
    for number in range(ROUNDS):
        expected += [f"{number}.0".encode(), LARGE, f"{number}.1".encode()]
    assert stored(broker, queue) == [*expected, b"last"]


def test_no_send_overtakes_an_earlier_one_way_send_of_its_key(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    for number in range(0, 2 * ROUNDS, 2):
        producer.send_oneway(Message("orders", str(number).encode()), sharding_key="k")
        receipt = producer.send(Message("orders", str(number + 1).encode()), sharding_key="k")
    assert stored(broker, receipt.message_queue) == [str(n).encode() for n in range(2 * ROUNDS)]


def test_a_one_way_send_of_a_failed_key_is_refused_until_the_key_is_resolved(
    producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    producer._failed_keys.add("orders", "k", "time-out")
    with pytest.raises(KeyFailed, match="time-out"):
        producer.send_oneway(Message("orders", b"refused"), sharding_key="k")
    producer.send_oneway(Message("orders", b"other"), sharding_key="other")
    assert producer.resolve("orders", "k")
    producer.send_oneway(Message("orders", b"resolved"), sharding_key="k")
    make_consumer(seen.take).start()
    seen.wait_for_count(2)
    assert seen.bodies_of("k") == [b"resolved"]
    assert producer.oneway_failures == 0


def test_a_one_way_send_whose_key_fails_while_it_waits_is_logged_and_counted(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(Message("orders", b"warm"), sharding_key="k")
    producer.queues("orders")  # the route is known: only sends are left to fail
    gate, fail = threading.Event(), RequestTimeout("no answer")

    def unanswered(self: Connection, opaque: int, frame: bytes, waiting: object, *_: int) -> bool:
        def later() -> None:
            gate.wait(10)
            with contextlib.suppress(StateError):  # closed meanwhile: nobody waits for this one
                producer._live().runtime.post(waiting.failed, fail)  # type: ignore[attr-defined]

        thread = threading.Thread(target=later, daemon=True)
        thread.start()
        later_ones.append(thread)  # started: the test joins what it finds here, at any time
        return True

    later_ones: list[threading.Thread] = []
    monkeypatch.setattr(Connection, "ask", unanswered)
    object.__setattr__(producer.config.send, "retry_times", 0)
    failures: list[BaseException] = []

    def send() -> None:
        try:
            producer.send(Message("orders", b"lost"), sharding_key="k")
        except RequestTimeout as error:
            failures.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    senders = producer._senders
    assert senders is not None
    eventually(lambda: bool(senders.in_flight), "the send is in flight")
    producer.send_oneway(Message("orders", b"behind it"), sharding_key="k")
    gate.set()
    thread.join(10)
    assert failures == [fail]
    eventually(lambda: producer.oneway_failures == 1, "it is counted")
    assert "one-way message" in caplog.text
    assert "'k'" in caplog.text
    for each in later_ones:  # before the producer is closed
        each.join(10)


def test_a_one_way_send_does_not_wait_for_the_request_in_front_of_it(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = producer.send(Message("orders", b"warm")).message_queue
    assert producer._senders is not None
    sender = producer._senders.sender_of(queue)
    sender._in_flight = object()  # type: ignore[assignment]
    producer.send_oneway(Message("orders", b"behind it"), queue=queue)
    eventually(lambda: len(sender._waiting) == 1, "it waits behind the request")
    sender._in_flight = None
    producer._live().runtime.post(sender.begin)
    eventually(lambda: sender.is_idle, "it was sent")


def test_a_one_way_send_is_asked_no_answer_for_unless_it_has_a_place_to_keep(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    oneway: list[Command] = []
    plain = Connection.send_oneway

    def noting(self: Connection, command: Command) -> None:
        oneway.append(command)
        plain(self, command)

    monkeypatch.setattr(Connection, "send_oneway", noting)
    with Producer("p", name_servers=broker.name_servers, unit_mode=True) as producer:
        producer.send_oneway(Message("orders", b"1"))
        producer.send_oneway(Message("orders", b"2"), sharding_key="k")
        producer.send_oneway(Message("orders", b"3"), queue=producer.queues("orders")[0])
    (sent,) = [command for command in oneway if command.code == RequestCode.SEND_MESSAGE_V2]
    assert bytes(sent.body) == b"1"
    assert sent.ext["k"] == "true"  # unit mode


def test_a_timed_one_way_message_is_delivered_at_its_time(
    producer: Producer, seen: Seen, make_consumer: Callable[..., PushConsumer]
) -> None:
    producer.send_oneway(Message("orders", b"late", delay_ms=400), sharding_key="k")
    producer.send_oneway(Message("orders", b"now"), sharding_key="k")
    make_consumer(seen.take).start()
    seen.wait_for_count(2)
    assert seen.bodies_of("k") == [b"now", b"late"]


def test_hooks_see_one_way_messages_before_and_after(broker: EmbeddedBroker) -> None:
    class Hook:
        def __init__(self) -> None:
            self.before_bodies: list[bytes] = []
            self.after_calls: list[SendCall] = []

        def before(self, call: SendCall) -> None:
            self.before_bodies.append(bytes(call.message.body))

        def after(self, call: SendCall) -> None:
            self.after_calls.append(call)

    hook, producer = Hook(), Producer("p", name_servers=broker.name_servers)
    producer.add_hook(hook)
    with producer:
        producer.send_oneway(Message("orders", b"unordered"))
        producer.send_oneway(Message("orders", b"ordered"), sharding_key="k")
    assert hook.before_bodies == [b"unordered", b"ordered"]
    ends = {bytes(call.message.body): call for call in hook.after_calls}
    assert ends[b"unordered"].receipt is None
    assert ends[b"unordered"].exception is None
    assert ends[b"ordered"].receipt is not None


def test_a_one_way_send_that_cannot_be_sent_is_refused_at_once(producer: Producer) -> None:
    producer.send(Message("orders", b"warm"))
    producer.queues("orders")  # the route is known: a queue is chosen in the call
    with pytest.raises(ConfigError, match="another topic"):
        producer.send_oneway(Message("orders", b"x"), queue=MessageQueue("other", "b", 0))
    with pytest.raises(ConfigError, match="expected at most"):
        producer.send_oneway(Message("orders", b"x" * (4_194_304 + 1)))
    producer.close()
    with pytest.raises(StateError, match="not running"):
        producer.send_oneway(Message("orders", b"x"))
    assert producer.oneway_failures == 0
