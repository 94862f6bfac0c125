"""Arguments of a wrong type: errors at construction that say what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    LitePullConsumer,
    LitePullConsumerConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    TransactionProducer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig, ConsumerConfig, PullConfig, RemotingConfig, TraceConfig
from ordermq.errors import ConfigError

CONFIGS = {
    PushConsumer: ConsumerConfig,
    LitePullConsumer: LitePullConsumerConfig,
    AsyncConsumer: LitePullConsumerConfig,
    PullConsumer: PullConsumerConfig,
    Producer: ProducerConfig,
    AsyncProducer: ProducerConfig,
}
GROUPS = [(client, group) for client, kind in CONFIGS.items() for group in kind.groups()]


def made(client: Callable[..., Any], **arguments: object) -> Any:
    return client("g", name_servers="127.0.0.1:1", **arguments)


@pytest.mark.parametrize(("client", "group"), GROUPS)
@pytest.mark.parametrize("wrong", [False, 5, "x", {"tls": True}])
def test_the_name_of_a_group_of_settings_takes_such_a_group_alone(
    client: type, group: str, wrong: object
) -> None:
    with pytest.raises(ConfigError, match=rf"^{group}: expected a \w+Config, .* given flat, as"):
        made(client, **{group: wrong})


def test_a_dict_for_a_group_names_a_setting_of_it_and_shows_no_value() -> None:
    with pytest.raises(ConfigError, match=r"given flat, as secret_key=$") as caught:
        made(Producer, remoting={"secret_key": "hidden"})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("make", [ConsumerConfig, ConsumerConfig.of])
def test_a_config_takes_groups_of_their_own_class_alone(make: Callable[..., Any]) -> None:
    assert make(pull=PullConfig(pull_batch_size=8)).pull.pull_batch_size == 8
    with pytest.raises(ConfigError, match=r"^pull: expected a PullConfig, .* not a TraceConfig"):
        make(pull=TraceConfig())


@pytest.mark.parametrize("client", CONFIGS)
def test_no_group_of_settings_is_proposed_for_a_misspelt_setting(client: type) -> None:
    for group in CONFIGS[client].groups():
        for wrong in (f"{group}x", f"client_{group}", f"x{group}"):
            with pytest.raises(ConfigError, match="has no setting") as caught:
                made(client, **{wrong: 1})
            # `send` is a method, too.
            assert not str(caught.value).endswith(f"mean {group!r}?")


@pytest.mark.parametrize("client", CONFIGS)
@pytest.mark.parametrize("wrong", ["x", {"group": "g"}, RemotingConfig()])
def test_a_config_of_another_kind_is_refused(client: type, wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"^config: expected a \w+Config.* not a \w+"):
        made(client, config=wrong)


@pytest.mark.parametrize(
    ("client", "arguments", "told"),
    [
        (PushConsumer, {"offset_store": "local"}, "offset_store='local': expected an offset store"),
        (PushConsumer, {"offset_store": dict}, "expected an offset store"),
        (LitePullConsumer, {"offset_store": 1, "ordered": True}, "expected an offset store"),
        (AsyncConsumer, {"offset_store": 1}, "expected an offset store"),
        (PushConsumer, {"on_assigned": 1}, "on_assigned=1: expected a function"),
        (LitePullConsumer, {"on_revoked": "x"}, "on_revoked='x': expected a function"),
        (AsyncConsumer, {"on_assigned": 1}, "on_assigned=1: expected a function"),
        (PushConsumer, {"history": 1}, "history=1: expected the path of a file"),
        (PushConsumer, {"local_offset_store_dir": 1}, "local_offset_store_dir=1: expected a path"),
        (PushConsumer, {"customized_trace_topic": 1}, "customized_trace_topic=1: expected a topic"),
        (Producer, {"tls": True, "tls_ca_file": 1}, "tls_ca_file=1: expected a path"),
        (Producer, {"codec": 1}, r"codec=1: expected an object with encode\(value\)"),
        (Producer, {"selector": 1}, "selector 1: expected one of .*, or a function"),
        (TransactionProducer, {"listener": 1}, r"listener=1: expected .* execute\(\), check\(\)"),
        (TransactionProducer, {"check": 1}, "check=1: expected a function"),
        (TransactionProducer, {"check": print, "execute": 1}, "execute=1: expected a function"),
        (TransactionProducer, {"check": print, "topics": "t"}, "topics='t': expected a list"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_by_name(
    client: type, arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        made(client, **arguments)


@pytest.mark.parametrize("client", [PushConsumer, AsyncConsumer, Producer, AsyncProducer])
def test_a_hook_has_both_methods(client: type) -> None:
    class Half:
        def before(self, call: object) -> None: ...

    for wrong in (1, Half(), Half):
        with pytest.raises(ConfigError, match=r"expected an object with before\(\), after\(\)"):
            made(client).add_hook(wrong)


def test_filters_and_checks_are_functions() -> None:
    with pytest.raises(ConfigError, match=r"^filter=1: expected a function"):
        made(PushConsumer).add_filter(1)
    with pytest.raises(ConfigError, match=r"^check=1: expected a function"):
        made(Producer).add_check(1)


def test_the_admin_takes_no_group_either() -> None:
    with pytest.raises(ConfigError, match="has no setting 'remoting'"):
        Admin("127.0.0.1:1", remoting={})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"config": {"port": 1}}, "config: expected a BrokerConfig, not a dict"),
        ({"config": 0}, "config: expected a BrokerConfig, not a int"),
        ({"port": "9876"}, "port='9876': expected 1..65535"),
        ({"port": True}, "port=True: expected 1..65535"),
    ],
)
def test_an_embedded_broker_refuses_arguments_of_a_wrong_type(
    arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        EmbeddedBroker(**arguments)


def test_a_setting_given_to_an_embedded_broker_itself_is_told_its_place() -> None:
    for wrong in ("auto_create_topics", "autoCreateTopicEnable", "lock_max_live_ms"):
        with pytest.raises(TypeError, match=r"a setting of config=BrokerConfig\(\.\.\.\)"):
            EmbeddedBroker(**{wrong: 1})
    with pytest.raises(TypeError, match="did you mean 'port'"):
        EmbeddedBroker(prot=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["accounts", "policies", "tls_certificate"])
def test_settings_of_a_broker_have_their_types(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*: expected a"):
        BrokerConfig(**{name: 5})
