"""TLS between our clients and the embedded broker, and what is said when the two disagree."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from ordermq import Message, Producer, PushConsumer, core
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.consumer.fetch.engine_loop import EnginePath
from ordermq.errors import ConfigError, OrderMQError
from ordermq.producer.queue_sender import InFlightBatch
from ordermq.remoting.reading import can_share_reads
from ordermq.remoting.writing import Asked, SharedSocket
from tests.component.certificates import Authority, Certificate, replace_file
from tests.component.conftest import Seen, assert_in_order, eventually, numbered
from tests.component.damaging_proxy import (
    CuttingProxy,
    RandomCuts,
    RandomFlips,
    lead_through,
    speak_tls_up_to,
)


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def event_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERMQ_EVENT_LOOP", request.param)


def tls_broker(of: Certificate, **more: Any) -> EmbeddedBroker:
    config = BrokerConfig(durability="os", tls_certificate=of.certificate, tls_key=of.key, **more)
    return EmbeddedBroker(config=config)


@pytest.fixture
def broker(server_certificate: Certificate) -> Iterator[EmbeddedBroker]:
    with tls_broker(server_certificate) as running:
        yield running


def sent(broker: EmbeddedBroker, body: bytes = b"x", **settings: Any) -> None:
    settings = {"retry_times": 0, "connect_timeout_ms": 5_000} | settings
    with Producer("p", name_servers=broker.name_servers, **settings) as producer:
        producer.send(Message("orders", body), sharding_key="k")


def test_messages_pass_and_a_consumer_leaves_in_order(
    broker: EmbeddedBroker, authority: Authority, seen: Seen
) -> None:
    tls = {"tls": True, "tls_ca_file": authority.file}
    large = bytes(range(256)) * 8_000
    with Producer("p", name_servers=broker.name_servers, **tls) as producer:
        receipts = producer.send_many((Message("orders", b"%d" % n), "k") for n in range(500))
        producer.send(Message("orders", large), sharding_key="k")
    assert [receipt.queue_offset for receipt in receipts] == list(range(500))
    consumer = PushConsumer(
        "g", name_servers=broker.name_servers, consume_from_where="first_offset", **tls
    )
    consumer.subscribe("orders")
    consumer.orderly(seen.take)
    with consumer:
        seen.wait_for_count(501)
    assert seen.bodies_of("k") == [b"%d" % n for n in range(500)] + [large]


def test_a_thread_that_sends_alone_enciphers_and_writes_its_request(
    broker: EmbeddedBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[threading.Thread] = []
    append = SharedSocket.append

    def noting(self: SharedSocket, data: bytes, request: Asked) -> bool:
        is_added = append(self, data, request)
        if is_added:
            writers.append(threading.current_thread())
        return is_added

    monkeypatch.setattr(SharedSocket, "append", noting)
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file}
    with Producer("p", name_servers=broker.name_servers, **tls) as producer:
        for number in range(20):
            producer.send(Message("orders", b"%d" % number), sharding_key="k")
    assert writers.count(threading.current_thread()) >= 10


def test_a_thread_that_sends_alone_deciphers_its_answer(
    broker: EmbeddedBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    stored = InFlightBatch.stored_on_caller

    def noting(self: InFlightBatch, ids: str, queue_id: int, offset: int) -> bool:
        readers.append(threading.current_thread())
        return stored(self, ids, queue_id, offset)

    monkeypatch.setattr(InFlightBatch, "stored_on_caller", noting)
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file}
    with Producer("p", name_servers=broker.name_servers, **tls) as producer:
        for number in range(40):
            producer.send(Message("orders", b"%d" % number), sharding_key="k")
    mine = readers.count(threading.current_thread())
    assert mine >= 10 if can_share_reads() else not readers


def send_from_threads(
    producer: Producer, turns: int, failures: tuple[type[Exception], ...] = ()
) -> list[list[int]]:
    """Send from six threads, each to a queue of its own; return the offsets that each was told.

    Args: failures: that a send may end with.
    """
    queues = producer.queues("orders")

    def send(number: int) -> list[int]:
        offsets, queue = [], queues[number % len(queues)]
        for turn in range(turns):
            with contextlib.suppress(*failures):
                receipt = producer.send(Message("orders", b"%d" % turn), queue=queue)
                offsets.append(receipt.queue_offset)
        return offsets

    with ThreadPoolExecutor(6) as threads:
        return list(threads.map(send, range(6)))


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_threads_read_answers_in_records_in_pieces(
    broker: EmbeddedBroker,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    newest: ssl.TLSVersion,
) -> None:
    speak_tls_up_to(newest, monkeypatch)
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file, "retry_times": 0}
    with CuttingProxy(broker.address, RandomCuts(5)) as proxy:
        lead_through(proxy, broker.address, monkeypatch)
        with Producer("p", name_servers=broker.name_servers, **tls) as producer:
            producer.send(Message("orders", b"makes the topic"))
            found = send_from_threads(producer, 50)
    assert all(offsets == sorted(set(offsets)) for offsets in found)
    assert broker.statistics.messages_stored == 301


def test_answers_that_were_damaged_on_the_way_end_the_connection_and_are_asked_for_again(
    broker: EmbeddedBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    is_damaging, damaged = False, 0

    def flip(data: bytes) -> list[bytes]:
        nonlocal damaged
        if not is_damaging or draw.random() > 0.1:
            return [data]
        damaged += 1
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return [bytes(changed)]

    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file, "retry_times": 5}
    tls |= {"retry_delay_ms": 10, "reconnect_delay_ms": 10}
    with CuttingProxy(broker.address, flip) as proxy:
        lead_through(proxy, broker.address, monkeypatch)
        with Producer("p", name_servers=broker.name_servers, **tls) as producer:
            producer.send(Message("orders", b"makes the topic"))
            is_damaging = True
            found = send_from_threads(producer, 50, (OrderMQError,))
            is_damaging = False
            found += send_from_threads(producer, 5)
    assert damaged > 3
    assert all(offsets == sorted(set(offsets)) for offsets in found)
    assert sum(map(len, found)) > 200


def test_a_damaged_record_is_told_as_such(
    broker: EmbeddedBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as a handshake that failed, which was long before."""
    is_damaging = False

    def flip(data: bytes) -> list[bytes]:
        nonlocal is_damaging
        was_damaging, is_damaging = is_damaging, False
        return [data[:-1] + bytes([data[-1] ^ 1])] if was_damaging else [data]

    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file, "retry_times": 0}
    with CuttingProxy(broker.address, flip) as proxy:
        lead_through(proxy, broker.address, monkeypatch)
        with Producer("p", name_servers=broker.name_servers, **tls) as producer:
            producer.send(Message("orders", b"makes the topic"))
            is_damaging = True
            with pytest.raises(OrderMQError, match="a TLS record arrived damaged") as caught:
                producer.send(Message("orders", b"x"), sharding_key="k")
    assert "handshake" not in str(caught.value)


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("is_sealed", [False, True])
def test_signal_handlers_that_raise_anywhere_in_sends_leave_a_working_producer(
    broker: EmbeddedBroker, authority: Authority, is_sealed: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    settings: dict[str, Any] = {"retry_delay_ms": 10, "reconnect_delay_ms": 10}
    settings |= {"tls": True, "tls_ca_file": authority.file} if is_sealed else {}
    draw, main, fired = random.Random(11), threading.get_ident(), [0]
    go: SimpleQueue[float | None] = SimpleQueue()

    def fire() -> None:
        while (pause_s := go.get()) is not None:
            time.sleep(pause_s)
            signal.pthread_kill(main, signal.SIGUSR1)
            fired[0] += 1

    offsets: list[int] = []
    interrupted = 0
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, interrupt))
        running = broker if is_sealed else stack.enter_context(EmbeddedBroker())
        stack.enter_context(ThreadPoolExecutor(1)).submit(fire)
        stack.callback(go.put, None)
        producer = stack.enter_context(Producer("p", name_servers=running.name_servers, **settings))
        producer.send(Message("orders", b"makes the topic"))
        queue = producer.queues("orders")[0]
        for number in range(300):
            try:
                go.put(draw.random() * 0.0008)
                offsets.append(producer.send(Message("orders", b"x"), queue=queue).queue_offset)
                while fired[0] <= number:
                    time.sleep(0)
            except Interrupted:
                interrupted += 1
            while fired[0] <= number:
                time.sleep(0)
            if number % 10 == 0:
                offsets.append(producer.send(Message("orders", b"x"), queue=queue).queue_offset)
    assert offsets == sorted(set(offsets))
    assert interrupted > 100


def test_threads_that_encipher_beside_the_io_thread_keep_the_order_of_records(
    broker: EmbeddedBroker, authority: Authority
) -> None:
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file, "retry_times": 0}
    large = b"x" * 100_000  # several records, and more than the socket takes at once
    with (
        Producer("p", name_servers=broker.name_servers, **tls) as producer,
        ThreadPoolExecutor(6) as threads,
    ):

        def send(number: int) -> None:
            for turn in range(30):
                body = large if turn % 10 == number else b"x"
                producer.send(Message("orders", body), sharding_key=f"k{number}")
                producer.send_nowait(Message("orders", b"y"), sharding_key=f"k{number}")

        for done in [threads.submit(send, number) for number in range(6)]:
            done.result()
        producer.flush()
    assert broker.statistics.messages_stored == 360


def test_a_server_nobody_vouches_for_is_not_talked_to(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    for settings in ({}, {"tls_ca_file": stranger.file}):
        with pytest.raises(OrderMQError, match=r"certificate is not trusted.*give tls_ca_file="):
            sent(broker, tls=True, **settings)
    sent(broker, tls=True, tls_verify="none")
    assert broker.statistics.messages_stored == 1


def test_a_certificate_of_another_host_is_refused_unless_that_check_is_off(
    authority: Authority,
) -> None:
    with tls_broker(authority.sign("elsewhere", "DNS:elsewhere.example")) as broker:
        with pytest.raises(OrderMQError, match=r"not for the host 127\.0\.0\.1.*tls_verify='ca'"):
            sent(broker, tls=True, tls_ca_file=authority.file)
        sent(broker, tls=True, tls_ca_file=authority.file, tls_verify="ca")
        assert broker.statistics.messages_stored == 1


def test_a_broker_may_ask_for_a_certificate_of_one_it_trusts(
    authority: Authority, server_certificate: Certificate, tmp_path: Path
) -> None:
    ours, foreign = authority.sign("client"), Authority(tmp_path, "foreign").sign("foreigner")
    trusted = {"tls": True, "tls_ca_file": authority.file}
    with tls_broker(server_certificate, tls_client_ca_file=authority.file) as broker:
        with pytest.raises(
            OrderMQError, match=r"a client certificate \(tls_certificate=, tls_key=\)\?"
        ):
            sent(broker, **trusted)
        with pytest.raises(OrderMQError, match="trust the authority that signed tls_certificate"):
            sent(broker, tls_certificate=foreign.certificate, tls_key=foreign.key, **trusted)
        sent(broker, tls_certificate=ours.certificate, tls_key=ours.key, **trusted)
        assert broker.statistics.messages_stored == 1


@dataclass
class Renewal:
    """Files of both sides in their places, and others of a new authority."""

    ca: str
    server: Certificate
    client: Certificate
    new_ca: str
    new_server: Certificate
    new_client: Certificate

    def tls(self, *, is_new: bool = False) -> dict[str, Any]:
        """Settings of a client; those of `is_new` name the new files where they were made."""
        ca, own = (self.new_ca, self.new_client) if is_new else (self.ca, self.client)
        named = {"tls_certificate": own.certificate, "tls_key": own.key}
        return {"tls": True, "tls_ca_file": ca, "tls_verify": "ca", **named}

    def renew(self) -> None:
        self.new_server.copy_to(self.server)
        self.new_client.copy_to(self.client)
        replace_file(self.new_ca, self.ca)


@pytest.fixture
def renewal(tmp_path: Path) -> Renewal:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    new_ca = str(tmp_path / "new_ca.pem")
    replace_file(second.file, new_ca)
    return Renewal(
        first.file, first.sign("server"), first.sign("client"),
        new_ca, second.sign("new_server"), second.sign("new_client"),
    )  # fmt: skip


def test_members_use_renewed_files_at_their_next_connection(
    renewal: Renewal, tmp_path: Path, seen: Seen, has_engine: bool
) -> None:
    def serve(port: int = 0) -> EmbeddedBroker:
        named = {"tls_certificate": renewal.server.certificate, "tls_key": renewal.server.key}
        config = BrokerConfig(durability="os", tls_client_ca_file=renewal.ca, **named)
        return EmbeddedBroker(tmp_path / "broker.db", port=port, config=config)

    with contextlib.ExitStack() as clients:
        with serve() as broker:
            port, servers = broker.port, broker.name_servers
            producer = clients.enter_context(Producer("p", name_servers=servers, **renewal.tls()))
            producer.send(Message("orders", b"0"), sharding_key="k")
            start = {"consume_from_where": "first_offset"}
            consumer = PushConsumer("g", name_servers=servers, **start, **renewal.tls())
            consumer.subscribe("orders")
            consumer.orderly(seen.take)
            clients.enter_context(consumer)
            seen.wait_for_count(1)
        renewal.renew()
        with serve(port):
            producer.send(Message("orders", b"1"), sharding_key="k")
            seen.wait_for(lambda got: got[-1][3] == b"1", "the message behind the renewal")
            clients.close()


def test_a_broker_uses_renewed_files_at_its_next_connection(renewal: Renewal) -> None:
    with (
        tls_broker(renewal.server, tls_client_ca_file=renewal.ca) as broker,
        Producer("old", name_servers=broker.name_servers, **renewal.tls()) as producer,
    ):
        producer.send(Message("orders", b"0"), sharding_key="k")
        with pytest.raises(OrderMQError, match="certificate is not trusted"):
            sent(broker, **renewal.tls(is_new=True))
        renewal.renew()
        sent(broker, **renewal.tls(is_new=True))
        producer.send(Message("orders", b"2"), sharding_key="k")  # over its first connection
        assert broker.statistics.messages_stored == 3


def test_a_member_whose_broker_comes_back_with_a_certificate_of_another_tells_so(
    renewal: Renewal, server_certificate: Certificate, seen: Seen
) -> None:
    with contextlib.ExitStack() as clients:
        with tls_broker(renewal.server) as broker:
            Producer("p", name_servers=broker.name_servers, **renewal.tls()).close()
            consumer = PushConsumer("g", name_servers=broker.name_servers, **renewal.tls())
            consumer.subscribe("orders")
            consumer.orderly(seen.take)
            clients.enter_context(consumer)
            eventually(lambda: consumer.health().is_ready, "ready")
        of_another = BrokerConfig(
            tls_certificate=server_certificate.certificate, tls_key=server_certificate.key
        )
        with EmbeddedBroker(port=broker.port, config=of_another):
            eventually(
                lambda: "certificate is not trusted" in " ".join(consumer.health().reasons),
                "its health says why no broker is connected",
            )
            clients.close()


def test_files_that_cannot_be_used_any_more_leave_the_last_ones_in_use(
    renewal: Renewal, caplog: pytest.LogCaptureFixture
) -> None:
    told = "TLS files have changed and cannot be used"
    with tls_broker(renewal.server, tls_client_ca_file=renewal.ca) as broker:
        sent(broker, **renewal.tls())
        # Between the two files of a renewal, the key is that of another certificate.
        replace_file(renewal.new_server.certificate, renewal.server.certificate)
        sent(broker, **renewal.tls())
        sent(broker, **renewal.tls())
        told_of = [record for record in caplog.records if told in record.message]
        assert [record.name for record in told_of] == ["ordermq.broker"]
        renewal.renew()
        sent(broker, **renewal.tls())
        Path(renewal.client.key).write_bytes(b"")
        with pytest.raises(ConfigError, match="tls_key"):
            sent(broker, **renewal.tls())


def test_an_expired_certificate_is_told_as_such(authority: Authority, tmp_path: Path) -> None:
    expired = authority.sign("expired", days=-1)
    trusted = {"tls": True, "tls_ca_file": authority.file}
    with (
        tls_broker(expired) as broker,
        pytest.raises(OrderMQError, match=r"server's certificate is not valid now.*renew it at"),
    ):
        sent(broker, **trusted)
    with (
        tls_broker(authority.sign("valid"), tls_client_ca_file=authority.file) as broker,
        pytest.raises(OrderMQError, match="signed tls_certificate, and is it still valid"),
    ):
        sent(broker, tls_certificate=expired.certificate, tls_key=expired.key, **trusted)


def test_one_side_without_tls_is_told_so(broker: EmbeddedBroker, authority: Authority) -> None:
    with pytest.raises(OrderMQError, match=r"does it require TLS \(tls=True\)\?"):
        sent(broker)
    with EmbeddedBroker() as plain:
        with pytest.raises(
            OrderMQError, match=r"check that the server speaks TLS on this port.*tls=False"
        ):
            sent(plain, tls=True, tls_ca_file=authority.file)
        sent(plain)


def test_nobody_listening_is_told_as_without_tls(authority: Authority) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        Producer("p", name_servers=address, tls=True, tls_ca_file=authority.file) as producer,
        pytest.raises(OrderMQError, match="check that the server is running"),
    ):
        producer.send(Message("orders", b"x"))


def test_files_that_are_no_certificates_are_refused_before_anything_is_sent(
    tmp_path: Path, broker: EmbeddedBroker, server_certificate: Certificate, authority: Authority
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no certificate")
    for wrong in (str(text), str(tmp_path / "absent.pem")):
        with pytest.raises(ConfigError, match=r"tls_ca_file='.*' cannot be used"):
            sent(broker, tls=True, tls_ca_file=wrong)
        with pytest.raises(ConfigError, match=r"tls_certificate='.*' cannot be used"):
            tls_broker(Certificate(wrong, "")).start()
    with pytest.raises(ConfigError, match=r"tls_key='.*' cannot be used"):
        tls_broker(Certificate(server_certificate.certificate, authority.sign("other").key)).start()


def path_of(consumer: PushConsumer) -> object:
    return consumer._member.parts.fetcher._parts.path


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_engine_pulls_in_order_through_records_in_pieces(
    broker: EmbeddedBroker,
    authority: Authority,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    newest: ssl.TLSVersion,
) -> None:
    speak_tls_up_to(newest, monkeypatch)
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file}
    with Producer("p", name_servers=broker.name_servers, **tls) as producer:
        producer.send_many(numbered(1_000))
    with CuttingProxy(broker.address, RandomCuts(batch)) as proxy:
        lead_through(proxy, broker.address, monkeypatch)
        consumer = PushConsumer(
            "g",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            consume_message_batch_max_size=batch,
            **tls,
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            assert isinstance(path_of(consumer), EnginePath) == core.HAS_ENGINE
            seen.wait_for_count(1_000)
    assert_in_order(seen, 1_000)
    assert seen.duplicates() == 0


def test_records_that_were_damaged_on_the_way_end_the_connection_and_lose_nothing(
    broker: EmbeddedBroker, authority: Authority, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    flips = RandomFlips(3, share=0.5)
    tls: dict[str, Any] = {"tls": True, "tls_ca_file": authority.file}
    with Producer("p", name_servers=broker.name_servers, **tls) as producer:
        producer.send_many(numbered(2_000))
    with CuttingProxy(broker.address, flips) as proxy:
        lead_through(proxy, broker.address, monkeypatch)
        consumer = PushConsumer(
            "g",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            pull_delay_on_error_ms=10,
            reconnect_delay_ms=10,
            **tls,
        )
        consumer.subscribe("orders")
        consumer.orderly(seen.take)
        with consumer:
            seen.wait_for(lambda all: len({each[:2] for each in all}) == 2_000, "every message")
    assert flips.count > 3
    for key in range(10):
        got = [int(body) for body in seen.bodies_of(f"k{key}")]
        assert list(dict.fromkeys(got)) == list(range(key, 2_000, 10))


_ENDS_WITHOUT_CLOSE = """
import sys
from ordermq import Message, Producer, PushConsumer

servers, authority, group = sys.argv[1:]
tls = {"tls": True, "tls_ca_file": authority}
producer = Producer("p", name_servers=servers, **tls).start()
consumer = PushConsumer(group, name_servers=servers, consume_from_where="first_offset", **tls)
consumer.subscribe("orders")
count = 0

@consumer.orderly
def listen(messages, context):
    global count
    count += len(messages)

consumer.start()
for number in range(20):
    producer.send_many((Message("orders", b"x" * 1000), str(each)) for each in range(100))
while count < 1000:  # the pulls of the others are on their way
    pass
"""


def test_a_program_that_closes_nothing_ends_while_the_engine_deciphers(
    broker: EmbeddedBroker, authority: Authority
) -> None:
    for number in range(5):
        program = [sys.executable, "-c", _ENDS_WITHOUT_CLOSE, broker.name_servers, authority.file]
        # A group each: the locks of the one before are held until they expire.
        ended = subprocess.run([*program, f"g{number}"], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
