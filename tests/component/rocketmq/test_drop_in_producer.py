"""The old clients' producer: every way to send, and what is raised when it fails."""

from __future__ import annotations

import ctypes
import gc
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import (
    ConfigError,
    ConnectFailed,
    OrderMQError,
    ProtocolError,
    RouteError,
    StateError,
)
from ordermq.remoting.command import Command
from ordermq.rocketmq import exceptions
from ordermq.rocketmq.client import (
    Message,
    Producer,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from ordermq.rocketmq.sharding import string_hash
from tests.component.conftest import DEADLINE_S, eventually
from tests.component.damaging_proxy import DamagingProxy
from tests.component.rocketmq.conftest import message, stored


class Outcome:
    """A pair of callbacks for `send_async`."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self.results: list[SendResult] = []
        self.errors: list[exceptions.ProducerSendAsyncFailed] = []

    def succeeded(self, result: SendResult) -> None:
        self.results.append(result)
        self.happened.set()

    def failed(self, error: exceptions.ProducerSendAsyncFailed) -> None:
        self.errors.append(error)
        self.happened.set()

    def wait(self) -> None:
        assert self.happened.wait(DEADLINE_S)


def test_a_message_arrives_with_all_it_was_given(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    sent = Message("orders")
    sent.set_keys("a b")
    sent.set_tags(b"paid")
    sent.set_property("shop", "17")
    sent.set_body("Grüße")
    result = producer.send_sync(sent)
    assert result.status == SendStatus.OK == 0
    (got,) = stored(broker)
    assert (got.topic, got.id, got.queue_offset) == ("orders", result.msg_id, result.offset)
    assert (got.keys, got.tags, got.body) == (b"a b", b"paid", "Grüße".encode())
    assert got.get_property("shop") == got["shop"] == b"17"
    assert got.get_property("missing") == b""
    assert (str(got), bytes(got)) == ("Grüße", "Grüße".encode())
    assert (got.reconsume_times, got.delay_time_level, got.prepared_transaction_offset) == (0, 0, 0)
    assert 0 < got.born_timestamp <= got.store_timestamp
    assert got.store_size > len(got.body)


def test_a_body_is_not_cut_at_a_zero_byte(broker: EmbeddedBroker, producer: Producer) -> None:
    # The C library took bodies as C strings, both ways, and lost the rest.
    producer.send_sync(message(b"head\0tail"))
    (got,) = stored(broker)
    assert got.body == b"head\0tail"


def test_a_changed_message_is_sent_again_as_changed(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    reused = message("one")
    producer.send_sync(reused)
    reused.set_body("two")
    producer.send_sync(reused)
    assert sorted(each.body for each in stored(broker)) == [b"one", b"two"]


def test_the_store_size_is_that_of_the_message_asked(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    for body in ("x", "x" * 100, "x" * 10):
        producer.send_orderly(message(body), 0)
    sizes = [each.store_size for each in stored(broker)]
    assert [size - sizes[0] for size in sizes] == [0, 99, 9]


def test_a_delay_level_is_kept_by_the_broker(broker: EmbeddedBroker, producer: Producer) -> None:
    late = message()
    late.set_delay_time_level(18)
    assert producer.send_sync(late).status == SendStatus.OK
    assert producer.send_sync(message("now")).status == SendStatus.OK
    assert [each.body for each in stored(broker)] == [b"now"]


def test_a_oneway_message_arrives(broker: EmbeddedBroker, producer: Producer) -> None:
    producer.send_oneway(message("gone"))
    producer.send_sync(message())  # the topic exists now
    eventually(lambda: b"gone" in [each.body for each in stored(broker)], "it is stored")


def test_a_sharding_key_goes_where_2_0_0_sent_it(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    for number in range(20):
        key = f"order{number}"
        producer.send_orderly_with_sharding_key(message(key), key)
    for each in stored(broker):
        assert each.queue_id == string_hash(each.body) % 4
        assert each["__SHARDINGKEY"] == each.body


def test_an_orderly_argument_goes_where_0_4_4_sent_it(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    for number in (0, 1, 5, -1, 1 << 31):
        producer.send_orderly(message(str(number)), number)
        producer.send_oneway_orderly(message(str(number)), number)
    eventually(lambda: len(stored(broker)) == 10, "ten messages are stored")
    for each in stored(broker):
        assert each.queue_id == int(each.body) % 4


def test_a_queue_selector_is_called_as_0_4_4_called_it(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    calls = []

    def select(mq_size: int, msg: ReceivedMessage, arg: int) -> int:
        number = ctypes.cast(arg, ctypes.POINTER(ctypes.c_int))[0]
        calls.append((mq_size, msg.topic, msg.body, msg.tags, number))
        return 3

    tagged = message("b")
    tagged.set_tags("t")
    result = producer.send_orderly(tagged, 70, queue_selector=select)
    assert result.status == SendStatus.OK
    assert calls == [(4, "orders", b"b", b"t", 70)]
    assert [each.queue_id for each in stored(broker)] == [3]


def test_a_selector_that_names_no_queue_is_told_so(producer: Producer) -> None:
    with pytest.raises(IndexError, match=r"returned 9: expected 0\.\.3"):
        producer.send_orderly(message(), 0, queue_selector=lambda size, msg, arg: 9)


def test_a_batch_lies_in_one_queue_in_order(broker: EmbeddedBroker, producer: Producer) -> None:
    result = producer.send_batch([message("1"), message("2"), message("3")])
    got = stored(broker)
    assert [each.body for each in got] == [b"1", b"2", b"3"]
    assert len({each.queue_id for each in got}) == 1
    assert result == (SendStatus.OK, ",".join(each.id for each in got), got[0].queue_offset)


@pytest.mark.parametrize("messages", [[], ["text"]])
def test_a_batch_of_something_else_is_refused(producer: Producer, messages: list[Message]) -> None:
    with pytest.raises(AssertionError, match="at least one Message"):
        producer.send_batch(messages)


def test_an_asynchronous_send_tells_its_success(producer: Producer) -> None:
    outcome = Outcome()
    producer.send_async(message(), outcome.succeeded, outcome.failed)
    outcome.wait()
    assert outcome.results[0].status == SendStatus.OK
    assert outcome.errors == []


def test_asynchronous_sends_of_one_queue_keep_their_order(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    outcome = Outcome()
    for number in range(40):
        producer.send_async(message(str(number)), outcome.succeeded, outcome.failed)
    producer.shutdown()  # returns when every callback was told
    assert len(outcome.results) == 40
    by_queue: dict[int, list[int]] = {}
    for each in stored(broker):
        by_queue.setdefault(each.queue_id, []).append(int(each.body))
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())
    assert sum(map(len, by_queue.values())) == 40


def test_a_callback_may_send_and_may_shut_down(broker: EmbeddedBroker, producer: Producer) -> None:
    ended = threading.Event()

    def again(result: SendResult) -> None:
        producer.send_sync(message("second"))
        producer.shutdown()
        ended.set()

    producer.send_async(message("first"), again, None)
    assert ended.wait(DEADLINE_S)
    assert sorted(each.body for each in stored(broker)) == [b"first", b"second"]


def test_a_callback_that_raises_is_logged_and_the_next_is_told(
    producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(result: SendResult) -> None:
        raise ValueError("mine")

    outcome = Outcome()
    producer.send_async(message(), broken, None)
    producer.send_async(message(), outcome.succeeded, outcome.failed)
    outcome.wait()
    assert "a callback of send_async raised" in caplog.text


def test_threads_share_a_producer(broker: EmbeddedBroker, producer: Producer) -> None:
    with ThreadPoolExecutor(5) as threads:
        bodies = [str(number) for number in range(30)]
        list(threads.map(lambda body: producer.send_sync(message(body)), bodies))
    assert sorted(int(each.body) for each in stored(broker)) == list(range(30))


# Failures.


def test_what_cannot_be_sent_is_raised_as_the_old_exception_of_its_call(
    producer: Producer,
) -> None:
    empty = Message("orders")
    calls = {
        exceptions.ProducerSendSyncFailed: lambda: producer.send_sync(empty),
        exceptions.ProducerSendOnewayFailed: lambda: producer.send_oneway(empty),
        exceptions.ProducerSendOrderlyFailed: lambda: producer.send_orderly(empty, 1),
        exceptions.ProducerSendAsyncFailed: lambda: producer.send_async(empty, None, None),
    }
    for kind, call in calls.items():
        with pytest.raises(kind, match="body is empty") as caught:
            call()
        assert isinstance(caught.value.__cause__, ConfigError)
        assert caught.value.topic == "orders"
        assert isinstance(caught.value, exceptions.RocketMQException | OrderMQError)
    with pytest.raises(exceptions.ProducerSendOrderlyFailed, match="body is empty"):
        producer.send_orderly_with_sharding_key(empty, "k")
    with pytest.raises(exceptions.ProducerSendSyncFailed, match="body is empty"):
        producer.send_batch([empty])


def test_a_producer_that_does_not_run_says_so() -> None:
    idle = Producer("p")
    with pytest.raises(exceptions.ProducerSendSyncFailed, match="call start") as caught:
        idle.send_sync(message())
    assert isinstance(caught.value.__cause__, StateError)
    with pytest.raises(exceptions.ProducerSendAsyncFailed, match="call start"):
        idle.send_async(message(), None, None)
    idle.shutdown()


def test_without_any_address_a_producer_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(exceptions.ProducerStartFailed, match="set_name_server_address"):
        Producer("p").start()


def test_the_environment_names_the_name_server(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"http://{broker.name_servers}")
    with Producer("p") as producer:
        assert producer.send_sync(message()).status == SendStatus.OK


def test_an_unreachable_name_server_fails_the_send() -> None:
    producer = Producer("p", timeout=200)
    producer.set_name_server_address("127.0.0.1:1")
    with producer, pytest.raises(exceptions.ProducerSendSyncFailed) as caught:
        producer.send_sync(message())
    assert isinstance(caught.value.__cause__, RouteError)


def test_an_asynchronous_failure_is_told_with_its_cause() -> None:
    producer = Producer("p")
    producer.set_name_server_address("127.0.0.1:1")
    outcome = Outcome()
    with producer:
        producer.send_async(message(), outcome.succeeded, outcome.failed)
        outcome.wait()
    (error,) = outcome.errors
    assert (error.type, error.error, error.line) == ("RouteError", -1, 0)
    assert isinstance(error.__cause__, RouteError)


def test_a_key_of_unknown_outcome_may_be_sent_again_at_once(broker: EmbeddedBroker) -> None:
    producer = Producer("p", timeout=300)
    producer.set_name_server_address(broker.name_servers)
    with producer:
        producer.send_orderly_with_sharding_key(message("first"), "k")
        port = broker.port
        broker.close()
        with pytest.raises(exceptions.ProducerSendOrderlyFailed):
            producer.send_orderly_with_sharding_key(message("second"), "k")
        with EmbeddedBroker(port=port):
            result = producer.send_orderly_with_sharding_key(message("third"), "k")
            assert result.status == SendStatus.OK


def test_a_key_whose_answer_was_garbled_may_be_sent_again_at_once(broker: EmbeddedBroker) -> None:
    garbled: list[str] = []

    def garble(command: Command) -> None:
        if "queueOffset" in command.ext and not garbled:
            garbled.append(command.ext.pop("queueOffset"))

    with DamagingProxy(broker.address, garble) as proxy:
        producer = Producer("p")
        producer.set_name_server_address(proxy.address)
        with producer:
            with pytest.raises(exceptions.ProducerSendOrderlyFailed) as caught:
                producer.send_orderly_with_sharding_key(message("first"), "k")
            assert isinstance(caught.value.__cause__, ProtocolError)
            result = producer.send_orderly_with_sharding_key(message("second"), "k")
            assert result.status == SendStatus.OK


# Settings.


def test_settings_reach_the_engine(broker: EmbeddedBroker) -> None:
    producer = Producer("ignored", True, 700, 9, 10)
    producer.set_group("p")
    producer.set_namesrv_addr(broker.name_servers)
    with producer:
        assert producer.send_sync(message("x" * 10)).status == SendStatus.OK
        with pytest.raises(exceptions.ProducerSendSyncFailed, match="at most 10"):
            producer.send_sync(message("x" * 11))
        for change in (producer.set_timeout, producer.set_max_message_size):
            with pytest.raises(exceptions.RocketMQException, match="before start"):
                change(5)


def test_a_second_argument_of_0_4_4_is_not_taken_for_another() -> None:
    with pytest.raises(TypeError, match="timeout"):
        Producer("p", 3000)


def test_a_producer_starts_again_after_its_shutdown(broker: EmbeddedBroker) -> None:
    producer = Producer("p")
    producer.set_name_server_address(broker.name_servers)
    for body in ("one", "two"):
        with producer:
            producer.send_sync(message(body))
    assert len(stored(broker)) == 2


def test_a_forgotten_producer_is_shut_down(broker: EmbeddedBroker) -> None:
    producer = Producer("p")
    producer.set_name_server_address(broker.name_servers)
    producer.start()
    producer.send_sync(message())
    running = producer._producer
    del producer
    gc.collect()
    assert running is not None
    eventually(lambda: running._closed, "its engine is closed")


@pytest.mark.parametrize("is_first_answered", [True, False])
def test_a_program_that_fails_ends_though_it_never_shut_down(
    broker: EmbeddedBroker, is_first_answered: bool
) -> None:
    # Its producer is collected while the interpreter ends, when no thread can begin.
    program = (
        "import threading\n"
        "from ordermq.rocketmq.client import *\n"
        "producer, consumer = Producer('p'), PullConsumer('c')\n"
        "for each in producer, consumer:\n"
        f"    each.set_namesrv_addr({broker.name_servers!r})\n"
        "    each.start()\n"
        "message = Message('orders')\n"
        "message.set_body('x')\n"
        "answered = threading.Event()\n"
        "producer.send_async(message, lambda _: answered.set(), None)\n"
        "sent = producer.send_sync(message)\n"
        f"{is_first_answered} and answered.wait(20)\n"
        "raise SystemExit(sent.msg_id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    # Otherwise the other message may still be on its way when the interpreter ends, and its failure
    # is told behind the id.
    told = done.stderr.strip() if is_first_answered else done.stderr.split()[0]
    assert told in {each.id for each in stored(broker)}


@pytest.fixture
def domain(broker: EmbeddedBroker) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"" if "empty" in self.path else broker.name_servers.encode() + b"\n")

        def log_message(self, *ignored: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        server.shutdown()
        thread.join()


def test_a_domain_lists_the_name_servers(domain: str) -> None:
    producer = Producer("p")
    producer.set_name_server_domain(domain)
    with producer:
        assert producer.send_sync(message()).status == SendStatus.OK


def test_a_domain_that_lists_none_or_is_silent_fails_the_start(domain: str) -> None:
    for address, cause in (
        (f"{domain}/empty", ConfigError),
        ("ftp://127.0.0.1/x", ConfigError),
        ("127.0.0.1:1/x", ConnectFailed),
    ):
        producer = Producer("p")
        producer.set_namesrv_domain(address)
        with pytest.raises(exceptions.ProducerStartFailed) as caught:
            producer.start()
        assert isinstance(caught.value.__cause__, cause)


def test_credentials_sign_requests(tmp_path: object) -> None:
    accounts = {"alice": "secret"}
    with EmbeddedBroker(config=BrokerConfig(accounts=accounts)) as broker:
        for secret in ("secret", "wrong"):
            producer = Producer("p", timeout=1000)
            producer.set_name_server_address(broker.name_servers)
            producer.set_session_credentials("alice", secret, "ALIYUN")
            with producer:
                if secret == "secret":
                    assert producer.send_sync(message()).status == SendStatus.OK
                else:
                    with pytest.raises(exceptions.ProducerSendSyncFailed):
                        producer.send_sync(message())
