"""`ordermq doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from ordermq import Admin, Message, Producer, PushConsumer
from ordermq.admin.doctor import TEST_TOPIC, Finding, Verdict
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.client.admin_api import AdminApi
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.errors import RouteError
from ordermq.model.message import MessageView
from tests.component.conftest import eventually


@pytest.fixture
def admin(broker: EmbeddedBroker, producer: Producer) -> Iterator[Admin]:
    producer.send(Message("orders", b"paid"), sharding_key="k")
    with Admin(broker.name_servers) as looking:
        yield looking


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {each.name: each for each in findings}


def wrong(findings: list[Finding]) -> dict[str, Finding]:
    return by_name([each for each in findings if each.verdict is not Verdict.OK])


def test_a_healthy_cluster_gets_a_message_through_each_broker_and_keeps_nothing_of_it(
    admin: Admin, broker: EmbeddedBroker
) -> None:
    findings = admin.doctor(topic="orders")
    assert wrong(findings) == {}
    assert {each.remedy for each in findings} == {""}
    names = [each.name for each in findings]
    assert names == [
        f"name server {broker.name_servers}", "brokers", f"broker b at {broker.name_servers}",
        "topic orders", "broker b, version", "message through b", "clock of b",
    ]  # fmt: skip
    with pytest.raises(RouteError):
        admin.topic(TEST_TOPIC)


def test_a_test_topic_that_was_there_stays(admin: Admin) -> None:
    admin.create_topic(TEST_TOPIC, queues=2)
    findings = admin.doctor()
    assert [each.name for each in findings].count("message through b") == 2
    assert admin.topic(TEST_TOPIC).messages == 2


def test_without_a_message_nothing_changes_at_the_brokers(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminApi, "put_topic", None)  # a call of it would raise
    names = [each.name for each in admin.doctor(sends=False)]
    assert names[-1] == "broker b, version"


def test_a_missing_topic_is_told_with_the_command_that_creates_it(admin: Admin) -> None:
    found = wrong(admin.doctor(topic="ordres", sends=False))
    assert found["topic ordres"].verdict is Verdict.FAILED
    assert found["topic ordres"].remedy.startswith("create it: ordermq topics create ordres")


def test_a_group_without_members_is_no_failure(admin: Admin) -> None:
    found = wrong(admin.doctor(group="nobody", sends=False))
    assert {each.verdict for each in found.values()} == {Verdict.WARNING}
    assert "autoCreateSubscriptionGroup" in found["group nobody at broker b"].remedy
    assert found["group nobody, members"].detail.startswith("none is live")


def test_of_a_group_its_missing_topics_and_differing_subscriptions_are_told(
    admin: Admin, broker: EmbeddedBroker
) -> None:
    def started(expression: str) -> PushConsumer:
        consumer = PushConsumer("g", name_servers=broker.name_servers)
        consumer.subscribe("orders", expression)
        consumer.subscribe("ordres")
        consumer.orderly(lambda messages, context: None)
        return consumer

    with started("a") as first, started("b"):
        eventually(lambda: len(admin.group("g").subscriptions) == 2, "both answer")
        found = wrong(admin.doctor(group="g", sends=False))
        assert found["group g, topic ordres"].remedy.startswith("ordermq topics create ordres")
        assert found["group g, subscriptions"].verdict is Verdict.FAILED
        assert first.client_id in found["group g, subscriptions"].detail


def test_dead_letters_that_wait_are_told_with_what_to_run(
    admin: Admin, producer: Producer, broker: EmbeddedBroker
) -> None:
    assert by_name(admin.doctor(group="g", sends=False))["group g, dead letters"] == Finding(
        "group g, dead letters", Verdict.OK, "none waits"
    )
    letters = [producer.send(Message("%DLQ%g", b"%d" % number)) for number in range(3)]
    admin.skip_letter("g", letters[1].message_id)
    found = wrong(admin.doctor(group="g", sends=False))["group g, dead letters"]
    assert found.verdict is Verdict.WARNING
    assert found.detail == "2 waiting, of 3 that were given up"
    assert "ordermq dlq show g --waiting" in found.remedy
    assert "ordermq dlq redrive g" in found.remedy


@pytest.mark.parametrize(
    ("info", "settings", "name", "verdict", "remedy"),
    [
        ({"brokerVersionDesc": "V4_8_0"}, "", "version", Verdict.FAILED, "upgrade"),
        ({"commitLogDiskRatio": "0.91"}, "", "disk", Verdict.FAILED, "refused from 90 %"),
        ({"commitLogDiskRatio_/data": "0.86"}, "", "disk", Verdict.FAILED, "free space"),
        ({"sendThreadPoolQueueHeadWaitTimeMills": "210"}, "", "load", Verdict.WARNING, "disk"),
        ({}, "brokerPermission=4", "permission", Verdict.FAILED, "updateBrokerConfig"),
        ({}, "autoCreateTopicEnable=true", "topics", Verdict.WARNING, "topics create"),
    ],
)
def test_what_a_broker_says_of_itself_is_judged(
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    info: Mapping[str, str],
    settings: str,
    name: str,
    verdict: Verdict,
    remedy: str,
) -> None:
    async def runtime_info(self: AdminApi, address: str) -> dict[str, str]:
        return {"brokerVersionDesc": "V5_3_3", **info}

    async def broker_config(self: AdminApi, address: str) -> str:
        return f"brokerName=b\n{settings}\n"

    monkeypatch.setattr(AdminApi, "runtime_info", runtime_info)
    monkeypatch.setattr(AdminApi, "broker_config", broker_config)
    found = wrong(admin.doctor(sends=False))
    assert list(found) == [f"broker b, {name}"]
    assert found[f"broker b, {name}"].verdict is verdict
    assert remedy in found[f"broker b, {name}"].remedy


@pytest.mark.parametrize(("off_ms", "told"), [(5_000, "ahead of"), (-5_000, "behind")])
def test_a_clock_that_is_off_is_a_warning(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, off_ms: int, told: str
) -> None:
    stored = MessageView.store_timestamp_ms
    monkeypatch.setattr(
        MessageView, "store_timestamp_ms", property(lambda view: stored.__get__(view) + off_ms)
    )
    (found,) = wrong(admin.doctor()).values()
    assert (found.name, found.verdict) == ("clock of b", Verdict.WARNING)
    assert told in found.detail


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_the_command_prints_remedies_and_ends_with_the_code_of_the_first_failure(
    broker: EmbeddedBroker, producer: Producer
) -> None:
    producer.send(Message("orders", b"paid"), sharding_key="k")
    good = run("--topic", "orders", "--name-servers", broker.name_servers)
    assert good.exit_code == 0, good.output
    assert "0 warnings, 0 failed" in good.stdout
    bad = run("--topic", "ordres", "--no-message", "--name-servers", broker.name_servers)
    assert bad.exit_code == 3  # no broker has the topic
    assert "-> create it: ordermq topics create ordres" in bad.stdout
    assert "error: topic ordres" in bad.stderr
    document = run("--no-message", "--json", "--name-servers", broker.name_servers)
    told = json.loads(document.stdout)
    assert told["ok"]
    assert {"name", "verdict", "detail", "remedy", "is_unreachable"} == set(told["findings"][0])


def test_where_nobody_answers_the_command_says_what_to_look_at() -> None:
    away = run("--name-servers", "127.0.0.1:1")
    assert away.exit_code == 3
    assert "-> check host and port" in away.stdout


def test_an_account_that_may_not_look_or_create_is_told_how_to_go_on() -> None:
    """Each thing that is not allowed fails with its remedy, and does not end the rest."""
    policies = {"shop": [AccessPolicy("Topic:orders*", "Pub, Sub, Get")]}
    config = BrokerConfig(broker_name="b", accounts={"shop": "x"}, policies=policies)
    with (
        EmbeddedBroker(config=config) as broker,
        Admin(broker.name_servers, access_key="shop", secret_key="x") as admin,
    ):
        found = wrong(admin.doctor())
        assert "--access-key" in found[f"broker b at {broker.name_servers}"].remedy
        assert "--no-message" in found["test message"].remedy
    with EmbeddedBroker(config=config) as broker, Admin(broker.name_servers) as stranger:
        found = wrong(stranger.doctor())
        assert {each.verdict for each in found.values()} == {Verdict.FAILED}
        assert all("--access-key" in each.remedy for each in found.values())
