"""Settings: every bound, and what a wrong one says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    DeadLetter,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    TransactionProducer,
)
from ordermq.config import (
    DAY_MS,
    Allocation,
    BrokerConfig,
    ConsumeConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    DirectPullConfig,
    Durability,
    LeaseConfig,
    LitePullConfig,
    LitePullConsumerConfig,
    PopConfig,
    ProducerConfig,
    PullConfig,
    PullConsumerConfig,
    RebalanceConfig,
    RemotingConfig,
    SendConfig,
    TraceConfig,
    TransactionConfig,
)
from ordermq.config.checks import ranges_of
from ordermq.config.foreign_names import FOREIGN_NAMES, find_foreign_name
from ordermq.errors import ConfigError

FLAGS = (
    RemotingConfig, ConsumeConfig, SendConfig, BrokerConfig, LeaseConfig, LitePullConfig,
    TraceConfig,
)  # fmt: skip

GROUPS = (
    RemotingConfig, PullConfig, LitePullConfig, DirectPullConfig, PopConfig, LeaseConfig,
    ConsumeConfig, RebalanceConfig, SendConfig, TransactionConfig, TraceConfig, BrokerConfig,
)  # fmt: skip
# For each whole number. That of a level is the compression's, so that no field can declare it.
BOUNDS = {kind: ranges_of(kind) for kind in GROUPS}
BOUNDS[SendConfig] |= {"compress_level": (0, 9)}
# With these beside it, the named field may go to its own bound.
APART: dict[str, dict[str, int]] = {
    "broker_suspend_ms": {"pull_timeout_ms": DAY_MS, "suspended_pull_timeout_ms": DAY_MS},
    "suspended_pull_timeout_ms": {"broker_suspend_ms": 1},
    "pull_timeout_ms": {"broker_suspend_ms": 1},
    "lock_max_live_ms": {"lock_interval_ms": 10},
    "lock_interval_ms": {"lock_max_live_ms": DAY_MS},
    "pop_invisible_ms": {"pop_poll_ms": 1},
    "pop_poll_ms": {"pop_invisible_ms": 30_000},
}
FIELDS = [(kind, name) for kind, fields in BOUNDS.items() for name in fields]


def make(kind: type, name: str, value: object) -> object:
    known = {part.name for part in dataclasses.fields(kind)}
    beside = {other: at for other, at in APART.get(name, {}).items() if other in known}
    return kind(**({name: value} | beside))


def test_every_whole_number_of_every_group_has_a_range() -> None:
    for kind, bounds in BOUNDS.items():
        numbers = {part.name for part in dataclasses.fields(kind) if part.type in ("int", int)}
        assert numbers == set(bounds), kind.__name__


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_a_bound_is_legal_and_one_beyond_is_named_with_its_range(kind: type, name: str) -> None:
    low, high = BOUNDS[kind][name]
    at_high = high - 1 if name in ("broker_suspend_ms", "lock_interval_ms") else high
    for value in (low + name.endswith("pull_timeout_ms"), at_high):
        assert getattr(make(kind, name, value), name) == value
    for value in (low - 1, high + 1, True, 1.0, "1", None):
        with pytest.raises(ConfigError, match=rf"^{name}=.*{low}\.\.{high}"):
            make(kind, name, value)


def test_a_start_is_a_time_or_an_age() -> None:
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
    noon_ms = int(noon.timestamp()) * 1_000
    for given, kept in ((0, 0), (noon_ms, noon_ms), (noon, noon_ms), ("2h", "2h")):
        config = RebalanceConfig(consume_from_where="timestamp", consume_timestamp_ms=given)  # type: ignore[arg-type]
        assert config.consume_timestamp_ms == kept
    where = {"ORDERMQ_CONSUME_FROM_WHERE": "timestamp"}
    read = ConsumerConfig.from_env(environ=where | {"ORDERMQ_CONSUME_TIMESTAMP_MS": f" {noon_ms}"})
    assert read.rebalance.consume_timestamp_ms == noon_ms
    read = ConsumerConfig.from_url(
        "rocketmq://broker?consume_from_where=timestamp&consume_timestamp_ms=15m"
    )
    assert read.rebalance.consume_timestamp_ms == "15m"


@pytest.mark.parametrize("where", ["first_offset", "last_offset"])
def test_a_time_to_start_from_that_would_not_be_used_is_refused(where: Any) -> None:
    with pytest.raises(ConfigError, match=r'set that to "timestamp"$'):
        RebalanceConfig(consume_from_where=where, consume_timestamp_ms="2h")
    assert RebalanceConfig(consume_from_where=where, consume_timestamp_ms=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (1_700_000_000, "looks like seconds: write 1700000000000"),
        (-1, "expected a time since 1970"),
        (datetime(1960, 1, 1, tzinfo=UTC), "expected a time since 1970"),
        (1 << 63, "within 64 bits"),
        (True, "expected ms since 1970 as an int, a datetime or one as a text"),
        (1.5, "expected ms since 1970 as an int, a datetime or one as a text"),
        (None, "expected ms since 1970 as an int, a datetime or one as a text"),
        ("yesterday", "expected ms since 1970 as an int, a datetime or one as a text"),
        ("", "expected ms since 1970 as an int, a datetime or one as a text"),
    ],
)
def test_a_start_that_is_no_time_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^consume_timestamp_ms=.*{message}"):
        RebalanceConfig(consume_timestamp_ms=given)


def test_an_idle_pull_must_be_answered_before_it_times_out() -> None:
    PullConfig(broker_suspend_ms=100, pull_timeout_ms=101)
    with pytest.raises(ConfigError, match=r"pull_timeout_ms=100: expected more than"):
        PullConfig(broker_suspend_ms=100, pull_timeout_ms=100)


def test_a_lease_must_be_renewed_before_it_ends() -> None:
    LeaseConfig(lock_max_live_ms=100, lock_interval_ms=99)
    with pytest.raises(ConfigError, match=r"lock_interval_ms=100: expected less than"):
        LeaseConfig(lock_max_live_ms=100, lock_interval_ms=100)


def test_a_choice_is_given_by_its_value_or_as_its_member() -> None:
    assert RebalanceConfig(allocation="avg_by_circle").allocation is Allocation.AVG_BY_CIRCLE  # type: ignore[arg-type]
    where = RebalanceConfig(consume_from_where=ConsumeFromWhere.TIMESTAMP).consume_from_where
    assert where is ConsumeFromWhere.TIMESTAMP
    assert BrokerConfig(durability="os").durability is Durability.OS  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["AVG", "", None, 1, ["avg"]])
def test_an_unknown_choice_names_the_known_ones(value: object) -> None:
    with pytest.raises(ConfigError, match=r"allocation=.*expected one of 'avg', 'avg_by_circle'"):
        RebalanceConfig(allocation=value)  # type: ignore[arg-type]


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PullConfig().pull_batch_size = 5  # type: ignore[misc]


# -- flat settings -------------------------------------------------------------------------


def test_flat_settings_find_their_groups() -> None:
    config = ConsumerConfig.of(
        pull_batch_size=64, lock_retry_ms=50, message_model="clustering", allocation="avg_by_circle"
    )
    assert config == ConsumerConfig(
        pull=PullConfig(pull_batch_size=64),
        lease=LeaseConfig(lock_retry_ms=50),
        rebalance=RebalanceConfig(allocation=Allocation.AVG_BY_CIRCLE),
    )
    assert ConsumerConfig.of() == ConsumerConfig()
    assert ProducerConfig.of(retry_times=0).send.retry_times == 0


def test_a_group_may_be_given_whole_beside_flat_settings_of_others() -> None:
    config = ConsumerConfig.of(pull=PullConfig(pull_batch_size=8), lock_retry_ms=50)
    assert (config.pull.pull_batch_size, config.lease.lock_retry_ms) == (8, 50)
    with pytest.raises(ConfigError, match="give 'pull' or its settings pull_batch_size, not both"):
        ConsumerConfig.of(pull=PullConfig(), pull_batch_size=8)


def test_a_config_is_given_whole_or_by_flat_settings() -> None:
    whole = ProducerConfig.of(retry_times=0)
    assert ProducerConfig.given(whole, {}) is whole
    assert ProducerConfig.given(None, {"retry_times": 0}) == whole
    with pytest.raises(ConfigError, match="not both: config and retry_times"):
        ProducerConfig.given(whole, {"retry_times": 0})


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("pull_batchsize", "did you mean 'pull_batch_size'"),
        ("lock_intervall_ms", "did you mean 'lock_interval_ms'"),
        ("zzz", "no setting 'zzz'$"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        ConsumerConfig.of(**{wrong: 1})


@pytest.mark.parametrize(
    ("client", "wrong", "meant"),
    [
        (PushConsumer, "on_failures", "on_failure"),
        (PushConsumer, "pull_batchsize", "pull_batch_size"),
        (LitePullConsumer, "offset_stores", "offset_store"),
        (AsyncConsumer, "on_asigned", "on_assigned"),
        (Producer, "select", "selector"),
    ],
)
def test_an_unknown_setting_may_be_meant_for_an_argument_of_the_client(
    client: Callable[..., object], wrong: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{wrong}'; did you mean '{meant}'"):
        client("g", name_servers="b:1", **{wrong: None})


@pytest.mark.parametrize(
    ("client", "wrong", "meant"),
    [
        (Producer, "sharding_key", ": it is an argument of send()"),
        (Producer, "shard_key", "; did you mean 'sharding_key', an argument of send()?"),
        (AsyncProducer, "shard_key", "; did you mean 'sharding_key', an argument of send()?"),
        (Producer, "topic", ": it is an argument of Message()"),
        (Producer, "tags", ": it is an argument of Message()"),
        (Producer, "delay_ms", ": it is an argument of Message()"),
        (Producer, "queue", ": it is an argument of send()"),
        (PushConsumer, "topic", ": it is an argument of subscribe()"),
        (PushConsumer, "expression", ": it is an argument of subscribe()"),
        (PushConsumer, "listener", ": it is an argument of orderly()"),
        (PushConsumer, "concurrently", ": it is a method"),
        (LitePullConsumer, "topic", ": it is an argument of subscribe()"),
        (LitePullConsumer, "timeout_ms", ": it is an argument of poll()"),
        (AsyncConsumer, "listener", ": it is an argument of orderly()"),
    ],
)
def test_a_setting_may_be_meant_for_a_method_of_the_client(
    client: Callable[..., object], wrong: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{wrong}'{re.escape(meant)}"):
        client("g", name_servers="b:1", **{wrong: "x"})


@pytest.mark.parametrize(
    "client", [Producer, AsyncProducer, PushConsumer, LitePullConsumer, PullConsumer]
)
def test_a_client_takes_its_group_by_place_and_nothing_else(client: Callable[..., object]) -> None:
    name = client.__name__
    with pytest.raises(
        TypeError, match=rf"^{name}\(\) was given \(str, str\) .* write {name}\(group"
    ):
        client("g", "a secret")


@pytest.mark.parametrize(
    ("client", "wrong", "meant"),
    [
        (PushConsumer, "auto_offset_reset", "Kafka's clients; here consume_from_where="),
        (PushConsumer, "auto.offset.reset", "Kafka's clients; here consume_from_where="),
        (PushConsumer, "session_timeout_ms", "Kafka's clients; here lock_max_live_ms="),
        (PushConsumer, "client_id", "Kafka's clients; here instance_name="),
        (PushConsumer, "max_poll_records", "Kafka's clients; here consume_message_batch_max_size="),
        (LitePullConsumer, "max_poll_records", "Kafka's clients; here poll_batch_size="),
        (AsyncConsumer, "bootstrap_servers", "Kafka's clients; here name_servers="),
        (AsyncProducer, "linger_ms", "Kafka's clients; here no such setting"),
        (Producer, "retries", "Kafka's clients; here retry_times="),
        (Producer, "timeout", "Kafka's clients and .*Java client; here send_timeout_ms="),
        (PushConsumer, "orderly", "rocketmq-client-python; .*@consumer.orderly"),
        (Producer, "sendMsgTimeout", "RocketMQ's Java client; here send_timeout_ms="),
        (PushConsumer, "prefetch_count", "pika; here pull_threshold_for_queue="),
        (PushConsumer, "worker_concurrency", "Celery; here consume_thread_count="),
        (PushConsumer, "namespaceV2", "mean 'namespace_v2'"),
        (PushConsumer, "rpc_hook", "Java client; here access_key=, secret_key="),
        (Producer, "aclHook", "Java client; here access_key=, secret_key="),
        (PushConsumer, "consume_timeout", r"consume_timeout_ms= \(Java's number is in minutes\)"),
        (PushConsumer, "client_rebalance", "no such setting .members always share"),
        (TransactionProducer, "transaction_listener", "Java client; here listener="),
        (PushConsumer, "consumeMessageBatchMaxSize", "mean 'consume_message_batch_max_size'"),
    ],
)
def test_a_setting_of_another_client_is_explained(
    client: Callable[..., object], wrong: str, meant: str
) -> None:
    with pytest.raises(ConfigError, match=meant):
        client("g", name_servers="b:1", **{wrong: 1})


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (Message, {"topic": "t", "body": b"x", "key": "k"}, "Message.* 'key': .*sharding_key= .of"),
        (Message, {"topic": "t", "body": b"x", "headers": {}}, "here properties="),
        (Message, {"topic": "t", "body": b"x", "tag": "a"}, "here tags="),
        (Message, {"topic": "t", "body": b"x", "propertys": {}}, "did you mean 'properties'"),
        (Retry, {"retry_jitter": 1}, "Celery; here jitter="),
        (DeadLetter, {"max_retries": 1}, "Celery; here max_attempts="),
        (DeadLetter, {"max_atempts": 1}, "did you mean 'max_attempts'"),
    ],
)
def test_an_argument_of_another_client_is_explained(
    call: Callable[..., object], given: dict[str, object], meant: str
) -> None:
    with pytest.raises(TypeError, match=meant):
        call(**given)


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (Producer.send, "key", r"Producer.send\(\) got .* 'key': .*; here sharding_key="),
        (Producer.send_oneway, "partition", "here queue="),
        (TransactionProducer.send_in_transaction, "messageGroup", "here sharding_key="),
        (Producer.send, "timeout", "a send has its producer's send_timeout_ms"),
        (Producer.send_batch, "key", "here sharding_key="),
        (Producer.flush, "timeout", "here timeout_s="),
        (LitePullConsumer.poll, "timeout", "here timeout_ms="),
        (Admin.create_topic, "num_partitions", "here queues="),
        (LitePullConsumer.batches, "max_records", "here poll_batch_size="),
        (PushConsumer.subscribe, "subExpression", "here expression="),
        (AsyncConsumer.subscribe, "topics", "one call of subscribe per topic"),
    ],
)
def test_an_argument_of_another_clients_method_is_explained(
    call: Callable[..., object], wrong: str, meant: str
) -> None:
    # Refused before the client is looked at, so none is needed.
    by_place = {"message": Message("t", b"x"), "messages": [Message("t", b"x")]}
    takes = [*inspect.signature(call).parameters.values()][1:]
    needed = {
        each.name: by_place.get(each.name)
        for each in takes
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    }
    with pytest.raises(TypeError, match=meant):
        call(None, **needed, **{wrong: 1})


def test_errors_name_the_argument_that_was_given_and_no_class_behind_it() -> None:
    with pytest.raises(ConfigError, match=r"^pull_batch_size=0: expected 1\.\.1024"):
        PushConsumer("g", name_servers="b:1", pull_batch_size=0)
    with pytest.raises(ConfigError, match=r"^PushConsumer has no setting 'qwerty'"):
        PushConsumer("g", name_servers="b:1", qwerty=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "wrong", "meant"),
    [
        ("consume_from_where", "earliest", "first_offset"),
        ("consume_from_where", "latest", "last_offset"),
        ("allocation", "range", "avg"),
    ],
)
def test_a_value_of_another_client_is_explained(setting: str, wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"; did you mean '{meant}'"):
        ConsumerConfig.of(**{setting: wrong})


def test_every_name_of_another_client_leads_to_something_that_is_there() -> None:
    clients = (Producer, PushConsumer, LitePullConsumer, AsyncConsumer)
    known = {name for client in clients for name in inspect.signature(client).parameters}
    for config in (ProducerConfig, ConsumerConfig, LitePullConsumerConfig):
        known |= set(config.kinds())
    known |= {each.name for each in dataclasses.fields(BrokerConfig)}
    known |= {*PullConsumerConfig.kinds()} | {*inspect.signature(TransactionProducer).parameters}
    for call in (
        Message,
        Producer.send,
        Producer.flush,
        LitePullConsumer.poll,
        PushConsumer.subscribe,
        Admin.create_topic,
        Retry,
        DeadLetter,
    ):
        known |= set(inspect.signature(call).parameters)
    for name, foreign in FOREIGN_NAMES.items():
        assert find_foreign_name(name) is foreign
        assert foreign.instead or foreign.remark, name
        assert [each for each in foreign.instead if each not in known] == [], name


def test_no_two_groups_of_a_config_share_a_setting() -> None:
    for kind in (ConsumerConfig, ProducerConfig):
        names = [
            inner.name
            for part in dataclasses.fields(kind)
            if isinstance(part.default_factory, type)
            for inner in dataclasses.fields(part.default_factory)
        ]
        assert len(names) == len(set(names))


def test_a_flat_setting_out_of_its_range_is_named_with_its_group() -> None:
    with pytest.raises(ConfigError, match=r"^pull_batch_size=0: expected 1\.\.1024"):
        ConsumerConfig.of(pull_batch_size=0)


def test_the_compression_level_has_the_range_of_its_type() -> None:
    assert ProducerConfig.of(compress_type="zstd", compress_level=22).send.compress_level == 22
    for kind, level in (("zstd", 0), ("zstd", 23), ("zlib", 10)):
        with pytest.raises(ConfigError, match="compress_level"):
            ProducerConfig.of(compress_type=kind, compress_level=level)
    with pytest.raises(ConfigError, match="'zlib', 'lz4', 'zstd'"):
        ProducerConfig.of(compress_type="gzip")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"access_key": "a"}, "secret_key is missing"),
        ({"secret_key": "s"}, "access_key is missing"),
        ({"security_token": "t"}, "security_token needs"),
        ({"access_key": "a", "secret_key": b"s"}, "secret_key: expected a str, got bytes"),
    ],
)
def test_an_account_is_given_whole(given: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        ProducerConfig.of(**given)


def test_a_brokers_accounts_are_keys_with_secrets_and_not_shown() -> None:
    assert "hidden" not in repr(BrokerConfig(accounts={"a": "hidden"}))
    for wrong in ({"a": ""}, {"": "s"}, {"a": None}):
        with pytest.raises(ConfigError, match="accounts"):
            BrokerConfig(accounts=wrong)


def test_tls_files_are_refused_where_nothing_would_read_them() -> None:
    for name in ("tls_ca_file", "tls_certificate", "tls_key"):
        with pytest.raises(ConfigError, match=f"{name} is given without tls=True"):
            RemotingConfig(**{name: "file.pem"})
    with pytest.raises(ConfigError, match="tls_key is given without tls_certificate"):
        RemotingConfig(tls=True, tls_key="file.pem")
    for name in ("tls_key", "tls_client_ca_file"):
        with pytest.raises(ConfigError, match=f"{name} is given without tls_certificate"):
            BrokerConfig(**{name: "file.pem"})
    with pytest.raises(ConfigError, match="'full', 'ca', 'none'"):
        RemotingConfig(tls=True, tls_verify="yes")


def test_the_form_of_headers_is_the_environments_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROCKETMQ_SERIALIZE_TYPE", raising=False)
    assert RemotingConfig().serialize_type == "json"
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "ROCKETMQ")
    assert RemotingConfig().serialize_type == "rocketmq"
    assert RemotingConfig(serialize_type="json").serialize_type == "json"
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "XML")
    with pytest.raises(ConfigError, match="ROCKETMQ_SERIALIZE_TYPE='XML'"):
        RemotingConfig()


@pytest.mark.parametrize("config", FLAGS)
def test_what_is_neither_true_nor_false_is_no_flag(config: type) -> None:
    flags = [each.name for each in dataclasses.fields(config) if each.type == "bool"]
    assert flags
    for name in flags:
        for wrong in ("no", 1, None):
            with pytest.raises(ConfigError, match=f"{name}={wrong!r}: expected True or False"):
                config(**{name: wrong})


def test_every_group_with_flags_is_tried() -> None:
    groups = [*BOUNDS, TraceConfig]
    assert {
        group for group in groups if any(f.type == "bool" for f in dataclasses.fields(group))
    } == set(FLAGS)


@pytest.mark.parametrize("name", ["", "a@b", "a b", "a/b", "a\n", "a" * 101, 7])
def test_a_broker_name_with_odd_characters_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="broker_name"):
        BrokerConfig(broker_name=name)
    with pytest.raises(ConfigError, match="cluster_name"):
        BrokerConfig(cluster_name=name)


def test_a_broker_may_be_named_after_its_host_and_a_cluster_may_not() -> None:
    assert BrokerConfig(broker_name="mq-1.shop_a|b").broker_name == "mq-1.shop_a|b"
    with pytest.raises(ConfigError, match="cluster_name"):
        BrokerConfig(cluster_name="mq-1.shop")  # a part of a topic's name
