"""Configurations from a dict, a URL and the environment: what they take, refuse and never show."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from ordermq import LitePullConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
from ordermq.config import (
    ClientConfig,
    ConsumerConfig,
    LitePullConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
)
from ordermq.errors import ConfigError

CONFIGS: list[type[ClientConfig]] = [
    ProducerConfig,
    ConsumerConfig,
    LitePullConsumerConfig,
    PullConsumerConfig,
]
SECRET = "s3cr3t-Pass"


# A mapping.


def test_a_file_is_flat_or_in_groups() -> None:
    flat = ProducerConfig.from_dict({"group": "shop", "name_servers": "a:1", "retry_times": 2})
    text = 'group = "shop"\nname_servers = "a:1"\n[send]\nretry_times = 2\n'
    assert ProducerConfig.from_dict(tomllib.loads(text)) == flat
    assert (flat.group, flat.name_servers, flat.send.retry_times) == ("shop", "a:1", 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retry_tims": 2}, "has no setting 'retry_tims'; did you mean 'retry_times'"),
        ({"send": {"retry_tims": 2}}, "'send' has no setting 'retry_tims'; did you mean 'retry_t"),
        ({"send": {"retry_times": 2}, "retry_times": 3}, "'retry_times' is given twice"),
        ({"send": {"retry_times": "2"}}, "retry_times='2': expected an int"),
    ],
)
def test_a_wrong_entry_of_a_mapping_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ProducerConfig.from_dict(settings)


# A URL.


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_url_has_servers_account_group_and_settings(kind: type[Any]) -> None:
    url = f"rocketmq://me:{SECRET}@mq1:9000,mq2;[::1]?group=shop&tls=true&connect_timeout_ms=50"
    config = kind.from_url(url)
    assert (config.group, config.name_servers) == ("shop", "mq1:9000;mq2:9876;[::1]:9876")
    remoting = config.remoting
    assert (remoting.access_key, remoting.secret_key) == ("me", SECRET)
    assert (remoting.tls, remoting.connect_timeout_ms) == (True, 50)
    assert SECRET not in repr(config)


def test_an_account_is_percent_encoded() -> None:
    config = ProducerConfig.from_url("rocketmq://a%40b:x%2F%3F%23%40%3Ay@mq:1")
    assert (config.remoting.access_key, config.remoting.secret_key) == ("a@b", "x/?#@:y")


@pytest.mark.parametrize(
    "url",
    [
        f"rocketmq://me:{SECRET}@",
        f"http://me:{SECRET}@mq:1",
        f"me:{SECRET}@mq:1",
        f"rocketmq://me:{SECRET}",  # read as host and port
        f"rocketmq://:{SECRET}@mq:1",
        f"rocketmq://{SECRET}@mq:1",
        f"rocketmq://me:{SECRET}/x@mq:1",
        f"rocketmq://me:{SECRET}?x@mq:1",
        f"rocketmq://me:x?{SECRET}@mq:1",
        f"rocketmq://me:{SECRET}#x@mq:1",
        f"rocketmq://me:x#{SECRET}@mq:1",
        f"rocketmq://me:{SECRET}[@mq:1",
        f"rocketmq://me:{SECRET}@mq:1/path",
        f"rocketmq://me:{SECRET}@mq:1?group",
        f"rocketmq://me:{SECRET}@mq:1?group=a&group=b",
        f"rocketmq://me:{SECRET}@mq:1?retry_times=many",
        f"rocketmq://me:{SECRET}@mq:1?tls=maybe",
        f"rocketmq://me:{SECRET}@mq:1?retry_tims=1",
        f"rocketmq://me:{SECRET}@mq:1?secret_key=other",
    ],
)
def test_a_wrong_url_raises_and_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Producer("p", config=ProducerConfig.from_url(url))
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.args}"
        assert error.__suppress_context__ or error.__context__ is None
        error = error.__cause__


@pytest.mark.parametrize("url", [None, 5, b"rocketmq://mq"])
def test_what_is_no_text_is_no_url(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"from_url: expected rocketmq://"):
        ProducerConfig.from_url(url)


# The environment.


def test_the_environment_configures_each_client_with_its_own() -> None:
    environment = {
        "ORDERMQ_GROUP": "shop",
        "ORDERMQ_NAME_SERVERS": "a:1;b:2",
        "ORDERMQ_ACCESS_KEY": "me",
        "ORDERMQ_SECRET_KEY": SECRET,
        "ORDERMQ_RETRY_TIMES": "2",  # a producer's
        "ORDERMQ_PULL_BATCH_SIZE": " 64 ",  # a consumer's
        "ORDERMQ_AUTO_COMMIT": "No",
        "ORDERMQ_CORE": "cython",
        "ORDERMQ_PORT": "tcp://10.0.0.1:9876",  # Kubernetes, beside a service of this name
        "ORDERMQ_": "",
        "PATH": "/bin",
    }
    producer = ProducerConfig.from_env(environ=environment)
    consumer = ConsumerConfig.from_env(environ=environment)
    assert (producer.group, producer.name_servers) == ("shop", "a:1;b:2")
    assert producer.send.retry_times == 2
    assert (consumer.pull.pull_batch_size, consumer.consume.auto_commit) == (64, False)
    assert consumer.remoting.secret_key == SECRET
    assert SECRET not in f"{producer!r}{consumer!r}"


def test_the_process_environment_and_a_prefix_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_MQ_RETRY_TIMES", "7")
    assert ProducerConfig.from_env("SHOP_MQ_").send.retry_times == 7


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("ORDERMQ_NAME_SERVER", "a:1", "did you mean 'name_servers'"),
        ("ORDERMQ_RETRY_TIME", "1", "did you mean 'retry_times'"),
        ("ORDERMQ_PULL_BATCHSIZE", "1", "did you mean 'pull_batch_size'"),
        ("ORDERMQ_RETRY_TIMES", "many", "ORDERMQ_RETRY_TIMES is 'many': expected an int"),
        ("ORDERMQ_TLS", "", "ORDERMQ_TLS is '': expected true or false"),
        ("ORDERMQ_RETRY_TIMES", "-1", r"retry_times=-1: expected 0\.\.1000"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ProducerConfig.from_env(environ={variable: text})


# Clients.

CLIENTS: list[tuple[Callable[..., Any], type[ClientConfig]]] = [
    (Producer, ProducerConfig),
    (lambda *group, **given: TransactionProducer(*group, check=print, **given), ProducerConfig),  # type: ignore[arg-type]
    (PushConsumer, ConsumerConfig),
    (LitePullConsumer, LitePullConsumerConfig),
    (PullConsumer, PullConsumerConfig),
]


@pytest.mark.parametrize(("client", "kind"), CLIENTS)
def test_a_client_takes_group_and_servers_from_its_arguments_its_config_or_the_environment(
    client: Callable[..., Any], kind: type[ClientConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = kind(group="shop", name_servers=["a:1", "b:2"])
    made = client(config=config)
    assert (made.group, made.name_servers) == ("shop", ("a:1", "b:2"))
    made = client("other", config=config, name_servers="c:3")
    assert (made.group, made.name_servers) == ("other", ("c:3",))
    monkeypatch.setenv("ORDERMQ_NAME_SERVERS", "d:4")
    assert client("g").name_servers == ("d:4",)
    assert client("g", config=config).name_servers == ("a:1", "b:2")


@pytest.mark.parametrize(("client", "kind"), CLIENTS)
def test_a_client_without_group_or_servers_says_what_to_give(
    client: Callable[..., Any], kind: type[ClientConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORDERMQ_NAME_SERVERS", raising=False)
    with pytest.raises(ConfigError, match="no group: give one as its first argument"):
        client(name_servers="a:1")
    with pytest.raises(ConfigError, match=r"no name servers: .*set ORDERMQ_NAME_SERVERS"):
        client("g", config=kind())
    with pytest.raises(ConfigError, match="name_servers is empty"):
        client("g", name_servers="")


def test_name_servers_with_a_secret_are_refused_by_the_config_and_not_shown() -> None:
    for servers in (f"rocketmq://me:{SECRET}@mq:1", [f"me:{SECRET}@mq:1"], f"mq://{SECRET}"):
        with pytest.raises(ConfigError, match="name_servers has a") as caught:
            ProducerConfig(name_servers=servers)
        assert SECRET not in str(caught.value)
