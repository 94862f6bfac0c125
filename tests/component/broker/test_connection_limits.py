"""Limits of connections (docs/embedded-broker.md#limits)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.statistics import BrokerStatistics
from ordermq.clock import ManualClock
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import SendHeader
from ordermq.remoting.signing import Credentials
from tests.component.broker.wire_client import DEADLINE_S, WireClient
from tests.component.certificates import Authority
from tests.component.conftest import eventually

MIB = 1 << 20
Start = Callable[..., EmbeddedBroker]


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Start]:
    """Starts brokers in memory with the given settings."""
    with ExitStack() as stack:

        def make(**settings: object) -> EmbeddedBroker:
            config = BrokerConfig(**settings)  # type: ignore[arg-type]
            return stack.enter_context(EmbeddedBroker(config=config, clock=clock))

        yield make


def half_frame(size: int, received: int) -> bytes:
    """The first bytes of a frame that says a greater size."""
    return struct.pack(">iI", size - 4, 100) + bytes(received - 8)


def tick_until(clock: ManualClock, step_ms: int, is_over: Callable[[], bool]) -> None:
    """Advance the clock until something has happened; each step is one check of the limits."""

    def is_over_now() -> bool:
        clock.advance(step_ms)
        return is_over()

    eventually(is_over_now, "a limit acts")


def test_unfinished_frames_of_all_connections_have_one_budget(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(max_frame_bytes=MIB, max_unfinished_bytes=4 * MIB)
    with ExitStack() as stack:
        senders = [stack.enter_context(WireClient(broker.port)) for _ in range(20)]
        small = senders.pop()
        small.socket.sendall(half_frame(MIB, 10_000))
        for sender in senders:
            sender.socket.sendall(half_frame(MIB, 900_000))
            sender.socket.settimeout(0.05)
        # 4 of 900,000 bytes fit into 4 MiB, and the small one: 15 are closed.
        eventually(lambda: broker.statistics.frames_over_budget == 15, "the rest is refused")
        bystander = stack.enter_context(WireClient(broker.port))
        assert bystander.send("orders").code == 0
        # The small one was never the largest, and its frame may still end.
        assert broker.statistics.connections == 6
    assert caplog.text.count("max_unfinished_bytes") == 1


def test_memory_grows_with_what_is_received_and_not_with_what_is_announced(start: Start) -> None:
    broker = start()
    before = resident_bytes()
    with ExitStack() as stack:
        for _ in range(200):
            sender = stack.enter_context(WireClient(broker.port))
            sender.socket.sendall(half_frame(16 * MIB, 100))
        stack.enter_context(WireClient(broker.port)).round_trip()
        assert resident_bytes() - before < 32 * MIB


def test_a_frame_must_be_complete_in_time(start: Start, clock: ManualClock) -> None:
    broker = start(frame_timeout_ms=1_000)
    with WireClient(broker.port) as slow, WireClient(broker.port) as idle:
        idle.round_trip()
        slow.socket.sendall(half_frame(1_000, 10))

        def is_over() -> bool:
            if not broker.statistics.frames_expired:
                slow.socket.sendall(b"x")  # a byte now and then is no progress
            return broker.statistics.frames_expired > 0

        tick_until(clock, 250, is_over)
        assert slow.is_closed()
        idle.round_trip()


def test_complete_frames_in_many_pieces_may_go_on_for_ever(
    start: Start, clock: ManualClock
) -> None:
    broker = start(frame_timeout_ms=400)
    with WireClient(broker.port) as client:
        # Each piece ends one frame and begins the next: the connection always has half of one.
        header = SendHeader("producers", "orders", 0)
        frame = encode(Command.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), bytes(100)))
        client.socket.sendall(frame[:50])
        for sent in range(1, 31):
            client.socket.sendall(frame[50:] + frame[:50])
            eventually(lambda sent=sent: broker.statistics.messages_stored == sent, "stored")
            clock.advance(100)
        assert broker.statistics.frames_expired == 0


def test_a_silent_connection_is_closed(start: Start, clock: ManualClock) -> None:
    broker = start(idle_close_ms=1_000)
    with WireClient(broker.port) as silent, WireClient(broker.port) as talking:
        silent.round_trip()

        def is_over() -> bool:
            talking.round_trip()
            return broker.statistics.connections_idle > 0

        tick_until(clock, 250, is_over)
        assert silent.is_closed()
        talking.round_trip()


def test_connections_have_a_limit_in_total_and_per_address(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(max_connections=5, max_connections_per_address=3)
    with ExitStack() as stack:

        def connect(source: str) -> socket.socket:
            made = socket.create_connection(
                ("127.0.0.1", broker.port), timeout=DEADLINE_S, source_address=(source, 0)
            )
            return stack.enter_context(made)

        def is_refused(made: socket.socket) -> bool:
            try:
                made.sendall(encode(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)))
                return made.recv(1) == b""
            except ConnectionError:
                return True

        first = [connect("127.0.0.1") for _ in range(5)]
        assert [is_refused(each) for each in first] == [False] * 3 + [True] * 2
        others = [connect("127.0.0.2") for _ in range(3)]
        assert [is_refused(each) for each in others] == [False] * 2 + [True]
        assert broker.statistics.connections_refused == 3
        # A place that becomes free is given again.
        first[0].close()
        eventually(lambda: broker.statistics.connections == 4, "4 are left")
        assert not is_refused(connect("127.0.0.2"))
    assert caplog.text.count("refusing connection") == 2
    assert "address=127.0.0.1" in caplog.text
    assert "address=127.0.0.2" in caplog.text


def test_before_the_first_good_signature_frames_are_smaller(start: Start) -> None:
    account = Credentials("shop", "secret")
    broker = start(accounts={"shop": "secret"}, max_unsigned_frame_bytes=10_000)
    large = Command.request(
        RequestCode.SEND_MESSAGE_V2, SendHeader("p", "orders", 0).to_ext(), bytes(20_000)
    )
    account.sign(large)
    with WireClient(broker.port) as unknown:
        unknown.socket.sendall(encode(large))
        assert unknown.is_closed()
    with WireClient(broker.port) as known:
        small = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        account.sign(small)
        known.socket.sendall(encode(small))
        assert known.wait(small).code == 0
        known.socket.sendall(encode(large))
        assert known.wait(large).code == 0
    with WireClient(broker.port) as other:
        assert other.call(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.NO_PERMISSION
        other.socket.sendall(half_frame(20_000, 100))
        assert other.is_closed()


def fill(broker: EmbeddedBroker, queues: int) -> None:
    """One message of nearly a MiB in each queue."""
    with WireClient(broker.port) as producer:
        for queue_id in range(queues):
            assert producer.send("orders", bytes(MIB - 10_000), queue_id).code == 0


def test_a_client_that_never_reads_is_closed(start: Start, clock: ManualClock) -> None:
    broker = start(reader_timeout_ms=1_000)
    fill(broker, 1)
    with WireClient(broker.port) as deaf:
        for _ in range(30):
            deaf.start_pull("orders", 0)
        tick_until(clock, 250, lambda: broker.statistics.slow_readers > 0)
        eventually(lambda: broker.statistics.connections == 0, "0 are left")


def test_answers_that_wait_for_one_client_are_bounded(start: Start) -> None:
    broker = start(max_unsent_bytes=4 * MIB, default_queue_count=64)
    with WireClient(broker.port) as deaf:
        with WireClient(broker.port) as producer:
            assert producer.send("orders", b"", 63, default_topic_queue_nums=64).code == 0
        # Held pulls are answered also while no more requests of the client are read.
        for queue_id in range(60):
            deaf.start_pull("orders", 0, queue_id, suspend_ms=60_000)
        eventually(lambda: broker.statistics.held_pulls == 60, "all wait")
        fill(broker, 60)
        eventually(lambda: broker.statistics.slow_readers == 1, "one does not read")
        eventually(lambda: broker.statistics.connections == 0, "0 are left")


def test_a_reader_that_reads_slowly_is_kept(start: Start, clock: ManualClock) -> None:
    broker = start(reader_timeout_ms=1_000)
    fill(broker, 1)
    with WireClient(broker.port) as slow:
        pulls = [slow.start_pull("orders", 0) for _ in range(60)]
        for number, pull in enumerate(pulls):
            assert slow.wait(pull).code == 0
            # More than the system buffers of a connection: the broker has had to write meanwhile.
            if number % 5 == 4:
                clock.advance(250)
    assert broker.statistics.slow_readers == 0


def test_a_reader_is_not_slow_if_as_much_waits_again() -> None:
    async def checks() -> list[int]:
        ignore: Any = lambda *_: None  # noqa: E731
        limited: Any = None
        connection = BrokerConnection(
            BrokerConfig(), limited, BrokerStatistics(), ignore, ignore, ignore, ignore, ignore
        )
        transport: Any = SimpleNamespace(
            get_write_buffer_size=lambda: 5 * MIB, pause_reading=ignore, resume_reading=ignore
        )
        connection._transport = transport
        found = []
        for is_read in (False, False, True, False):
            if is_read:
                connection.resume_writing()
            connection.pause_writing()
            connection.note_stalled()
            found.append(connection.stalled_checks)
        return found

    assert asyncio.run(checks()) == [1, 2, 0, 1]


def test_a_connection_that_was_closed_twice_is_aborted(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    server = authority.sign("server")

    async def work() -> None:
        ends = asyncio.Event()
        ignore: Any = lambda *_: None  # noqa: E731
        made: list[BrokerConnection] = []

        def make() -> BrokerConnection:
            made.append(
                BrokerConnection(
                    BrokerConfig(),
                    ignore,
                    BrokerStatistics(),
                    ignore,
                    ignore,
                    ignore,
                    ignore,
                    lambda _: ends.set(),
                )
            )
            return made[0]

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(make, "127.0.0.1", 0, ssl=context)
        port = listening.sockets[0].getsockname()[1]
        trusted = ssl.create_default_context(cafile=authority.file)
        # It never answers that the connection ends, so only an abort ends it at once.
        silent = await asyncio.to_thread(
            lambda: trusted.wrap_socket(
                socket.create_connection(("127.0.0.1", port), DEADLINE_S),
                server_hostname="127.0.0.1",
            )
        )
        with silent:
            made[0].close()
            made[0].close()
            made[0].flush()
            assert not ends.is_set()
            made[0].abort()
            await asyncio.wait_for(ends.wait(), DEADLINE_S)
        listening.close()

    asyncio.run(work())


def test_without_free_descriptors_the_broker_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (66, 66))
    broker = start()
    with WireClient(broker.port) as first, WireClient(broker.port) as second:
        first.round_trip()
        second.round_trip()
        with WireClient(broker.port) as third:
            assert third.is_closed()
        assert first.send("orders").code == 0
    assert "ulimit -n" in caplog.text


def test_a_connection_counts_before_its_tls_handshake(start: Start, tmp_path: Path) -> None:
    server = Authority(tmp_path, "authority").sign("server")
    broker = start(tls_certificate=server.certificate, tls_key=server.key, max_connections=2)
    with ExitStack() as stack:
        # They say nothing at all, not even hello.
        silent = [stack.enter_context(WireClient(broker.port)) for _ in range(3)]
        assert silent[2].is_closed()
        assert broker.statistics.connections_refused == 1
        silent[0].close()

        # The end of a handshake gives its place back.
        def is_admitted() -> bool:
            with socket.create_connection(("127.0.0.1", broker.port), timeout=0.2) as tried:
                try:
                    return tried.recv(1) != b""
                except TimeoutError:
                    return True

        eventually(is_admitted, "it is admitted")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4_096
