"""Reachable addresses of brokers: entries, look-ups, what is refused, where it may be written."""

from __future__ import annotations

import pickle
import tomllib
from typing import Any

import pytest

from ordermq.config import ConsumerConfig, ProducerConfig, RemotingConfig
from ordermq.config.address_map import AddressMap
from ordermq.errors import ConfigError


def test_the_most_exact_entry_counts() -> None:
    entries = {
        "10.0.0.5:10911": "localhost:20911",
        "10.0.0.5": "gateway",
        "*:10912": "localhost:30912",
        "[fd00::5]:10911": "[::1]:10911",
    }
    translate = AddressMap(entries).translate
    assert translate("10.0.0.5:10911") == "localhost:20911"
    assert translate("10.0.0.5:10912") == "gateway:10912"
    assert translate("10.0.0.6:10912") == "localhost:30912"
    assert translate("[FD00::5]:10911") == "[::1]:10911"
    assert translate("10.0.0.6:10911") == "10.0.0.6:10911"
    assert AddressMap(entries | {"*": "[::1]"}).translate("b:1") == "[::1]:1"


def test_a_result_is_not_looked_up_again() -> None:
    assert AddressMap({"a": "b", "b": "a"}).translate("a:1") == "b:1"


def test_an_address_that_is_none_stays_for_the_route_to_skip() -> None:
    assert AddressMap({"*": "b"}).translate("10.0.0.5") == "10.0.0.5"


def test_a_text_is_the_same_as_a_mapping() -> None:
    text = " 10.0.0.5:10911 = localhost:10911 ; 10.0.0.6=gateway,"
    as_mapping = {"10.0.0.5:10911": "localhost:10911", "10.0.0.6": "gateway"}
    assert AddressMap(text) == AddressMap(as_mapping) == as_mapping
    assert len(AddressMap("")) == 0


def test_it_is_a_value() -> None:
    """Spark sends it to executors and keeps a session per configuration."""
    given = {"a:1": "b:2"}
    config = RemotingConfig(address_map=given)
    given["c:1"] = "d:1"
    assert config.address_map == {"a:1": "b:2"}
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(RemotingConfig(address_map="a:1=b:2"))
    assert "address_map={'a:1': 'b:2'}" in repr(config)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("10.0.0.5:10911", r"'10\.0\.0\.5:10911': expected told=reachable, as 10\.0\.0\.5:10911="),
        ({"a:1": "b"}, "'a:1' and 'b': give both a port, or neither"),
        ({"a": "b:1"}, "'a' and 'b:1': give both a port, or neither"),
        ({"a": "*"}, r"'\*' is no address"),
        ("a=b;A=c", "'A' is given twice"),
        ({"a:0": "b:1"}, "'a:0': expected host:port, or a host alone"),
        ({"fd00::5": "b"}, "'fd00::5': .*an IPv6 host is in brackets"),
        ({"http://a": "b"}, "'http://a': expected host:port"),
        ({"": "b"}, "'': expected host:port"),
        ("a=", "'': expected host:port"),
        ({"a": 1}, "expected texts, host:port or a host"),
        (["a=b"], "expected a dict of addresses or a text such as .*, not a list"),
        (None, "not a NoneType"),
    ],
)
def test_a_wrong_entry_is_refused_at_construction(entries: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"RemotingConfig\.address_map: .*{says}"):
        RemotingConfig(address_map=entries)


@pytest.mark.parametrize("entries", ["u:s3cret@a:1=b:1", "a:1=u:s3cret@b:1", "u:s3cret@a"])
def test_what_may_hold_a_secret_is_not_shown(entries: str) -> None:
    with pytest.raises(ConfigError, match="not shown") as caught:
        RemotingConfig(address_map=entries)
    assert "s3cret" not in str(caught.value)


def test_it_comes_from_the_environment_a_url_or_a_file() -> None:
    environ = {"ORDERMQ_ADDRESS_MAP": "a:1=b:2;c=d"}
    url = "rocketmq://mq?group=g&address_map=a:1=b:2;c=d"
    file = tomllib.loads('[address_map]\n"a:1" = "b:2"\nc = "d"\n')
    for config in (
        ConsumerConfig.from_env(environ=environ),
        ProducerConfig.from_url(url),
        ProducerConfig.from_dict(file),
        ProducerConfig.from_dict({"remoting": {"address_map": file["address_map"]}}),
    ):
        assert config.remoting.address_map == {"a:1": "b:2", "c": "d"}


def test_two_brokers_may_not_become_one_address() -> None:
    found = AddressMap({"10.0.0.5": "localhost", "10.0.0.6": "localhost"})
    found.require_apart([("a", "10.0.0.5:10911"), ("b", "10.0.0.6:10921")])
    # A broker has two addresses while it moves, and RocketMQ's proxy tells its own for every one.
    found.require_apart([("a", "10.0.0.5:10911"), ("a", "10.0.0.6:10911")])
    found.require_apart([("a", "10.0.0.5:10911"), ("b", "10.0.0.5:10911")])
    with pytest.raises(ConfigError, match=r"a \(10\.0\.0\.5:10911\) and b .* become localhost:109"):
        found.require_apart([("a", "10.0.0.5:10911"), ("b", "10.0.0.6:10911")])
