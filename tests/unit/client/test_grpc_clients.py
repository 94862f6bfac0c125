"""Clients of a proxy's endpoint: addresses, and settings that are not for it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from ordermq.client.name_server_api import are_proxies, parse_name_servers
from ordermq.client.proxy import endpoints_of, problem_of
from ordermq.errors import BrokerError, ConfigError, RequestTimeout
from ordermq.grpc.messages import AddressScheme, Code, Status
from ordermq.remoting.codes import ResponseCode

ENDPOINT = "grpc://127.0.0.1:8081"


def test_endpoints_are_told_from_name_servers_by_their_scheme() -> None:
    assert are_proxies(parse_name_servers("grpc://a:8081;grpc://b:8081"))
    assert not are_proxies(parse_name_servers("a:9876;b:9876"))
    with pytest.raises(ConfigError, match="one kind"):
        parse_name_servers("grpc://a:8081;b:9876")
    with pytest.raises(ConfigError, match="scheme"):
        parse_name_servers("http://a:8081")
    with pytest.raises(ConfigError, match="host:port"):
        parse_name_servers("grpc://a")


def test_endpoints_have_the_scheme_of_their_hosts() -> None:
    assert endpoints_of(["127.0.0.1:8081"]).scheme == AddressScheme.IPV4
    assert endpoints_of(["[::1]:8081"]).scheme == AddressScheme.IPV6
    named = endpoints_of(["proxy.example.com:8081", "127.0.0.1:8081"])
    assert named.scheme == AddressScheme.DOMAIN_NAME
    assert [(each.host, each.port) for each in named.addresses] == [
        ("proxy.example.com", 8081),
        ("127.0.0.1", 8081),
    ]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"consume_from_where": "first_offset"}, "consume_from_where"),
        ({"pop_invisible_ms": 9_999}, "pop_invisible_ms"),
        ({"namespace": "shop"}, "namespace_v2"),
        ({"message_model": "broadcasting"}, "broadcasting"),
    ],
)
def test_what_a_proxy_cannot_do_for_a_consumer_is_refused(
    settings: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        PushConsumer("billing", name_servers=ENDPOINT, **settings)


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"selector": "sha256"}, "selector"), ({"namespace": "shop"}, "namespace_v2")],
)
def test_what_a_proxy_cannot_do_for_a_producer_is_refused(
    settings: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        Producer("shop", name_servers=ENDPOINT, **settings)


def test_a_batch_with_a_key_is_refused_before_it_is_sent() -> None:
    messages = [Message("orders", b"a"), Message("orders", b"b")]
    with (
        Producer("shop", name_servers=ENDPOINT) as producer,
        pytest.raises(ConfigError, match="one by one"),
    ):
        producer.send_batch(messages, sharding_key="k")


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        (Code.FORBIDDEN, ResponseCode.NO_PERMISSION),
        (Code.TOPIC_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST),
        (Code.TOO_MANY_REQUESTS, ResponseCode.FLOW_CONTROL),
        (49999, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_status_becomes_the_error_of_a_broker(code: int, ours: ResponseCode) -> None:
    problem = problem_of(Status(code=code, message="no"), "refused", topic="orders")
    assert isinstance(problem, BrokerError)
    assert problem.response_code == ours
    assert "orders" in str(problem)


def test_a_status_that_says_nothing_of_the_outcome_is_a_time_out() -> None:
    assert problem_of(Status(code=Code.OK), "") is None
    assert problem_of(None, "") is None
    assert isinstance(problem_of(Status(code=Code.PROXY_TIMEOUT), "send"), RequestTimeout)


def test_without_the_extra_the_error_names_it() -> None:
    program = (
        "import sys; sys.modules['hpack'] = None\n"
        "from ordermq import Producer\n"
        f"Producer('shop', name_servers={ENDPOINT!r}).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'ordermq[grpc]'" in done.stderr


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
def test_a_consumer_that_pulls_is_refused_at_a_proxy(kind: type[Any]) -> None:
    with pytest.raises(ConfigError, match="answers no pulls"):
        kind("g", name_servers=ENDPOINT)
