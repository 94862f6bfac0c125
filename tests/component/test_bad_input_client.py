"""Wrong addresses and silent servers: the error says what, where and what to do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from ordermq import Message, Producer, PushConsumer
from ordermq.errors import ConfigError, OrderMQError, RouteError

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
RECORD = b"\x15\x03\x03\x00\x02\x02\x46"  # an alert, as TLS servers answer plain bytes

SETTINGS = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64"  # by which a server of HTTP/2 begins


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """One that answers the first bytes of each connection, or nothing; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed at the end of the test
                while True:
                    connection, _ = listener.accept()
                    held.append(connection)
                    if answer and connection.recv(65_536):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for connection in held:
        connection.close()


def refusals(address: str) -> list[OrderMQError]:
    """A producer's and a consumer's error about a name server."""
    found = []
    with (
        Producer("p", name_servers=address, request_timeout_ms=300) as producer,
        pytest.raises(OrderMQError) as sending,
    ):
        producer.send(Message("orders", b"x"))
    found.append(sending.value)
    consumer = PushConsumer("g", name_servers=address, request_timeout_ms=300)
    consumer.subscribe("orders")
    consumer.orderly(lambda messages, context: None)
    with pytest.raises(OrderMQError) as starting:
        consumer.start()
    found.append(starting.value)
    return found


def assert_say(address: str, *words: str) -> None:
    for error in refusals(address):
        assert isinstance(error, RouteError)
        for word in (f"no name server answers ({address})", *words):
            assert word in str(error), str(error)


def test_an_address_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    assert_say(free, "cannot connect", "check that the server is running and the address is right")


def test_a_host_nobody_knows() -> None:
    host = "no-such-host.invalid"
    assert_say(f"{host}:9876", f"cannot find the host {host}", "check the name", "DNS server")


def test_a_name_server_that_is_a_web_server() -> None:
    with server(HTTP) as address:
        assert_say(address, "HTTP server on this port", "a RocketMQ name server (9876)")


def test_a_name_server_that_speaks_grpc() -> None:
    with server(SETTINGS) as address:
        assert_say(address, "gRPC server (HTTP/2) on this port", "remoting port (8080)")


def test_a_name_server_that_says_nothing() -> None:
    with server(b"") as address:
        assert_say(address, "the server never sent a byte", "a RocketMQ name server (9876)")


def test_a_name_server_that_speaks_tls() -> None:
    with server(RECORD) as address:
        assert_say(address, "server speaks TLS on this port: give tls=True")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "host:port"),
        ("localhost", "host:port"),
        ("localhost:port", "host:port"),
        ("http://h:1/x", "host:port alone"),
        (":9876", "host:port"),
        (";", "host:port"),
    ],
)
def test_what_is_no_address_at_all_is_refused_before_anything_is_asked(
    text: str, expected: str
) -> None:
    for make in (Producer, PushConsumer):
        with pytest.raises(ConfigError, match=rf"expected {expected}, as 127\.0\.0\.1:9876"):
            make("g", name_servers=text)
