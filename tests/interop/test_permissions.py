"""Accounts with permissions: the plain ACL of 4.9 and, from the same file, the one of 5.x.

RocketMQ 5.3 removed the plain ACL; it migrates such a file once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Admin,
    DeadLetter,
    FailurePolicy,
    Message,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.errors import BrokerError
from ordermq.remoting.command import Command
from ordermq.remoting.signing import Credentials
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.own_cluster import own_cluster

OWNER = {"access_key": "owner-of-all", "secret_key": "owner-secret"}
CLERK = {"access_key": "shop-clerk", "secret_key": "clerk-secret"}
FILE = Path(__file__).parent / "accounts.yml"
PROVIDERS = "org.apache.rocketmq.auth"


def settings_of(version: str, folder: Path) -> dict[str, str]:
    """Return the settings that make a broker of this version read accounts.yml."""
    if version < "5":
        return {"aclEnable": "true"}
    what = {"authentication": "Authentication", "authorization": "Authorization"}
    providers = {
        f"{name}{kind}Provider": f"{PROVIDERS}.{name}.provider.{prefix}{word}{kind}Provider"
        for name, word in what.items()
        for kind, prefix in (("", "Default"), ("Metadata", "Local"))
    }
    return {
        **providers,
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "migrateAuthFromV1Enabled": "true",
        "authConfigPath": str(folder / "auth"),
        "innerClientAuthenticationCredentials": (
            '{"accessKey":"owner-of-all","secretKey":"owner-secret"}'
        ),
    }


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a broker with accounts of different permissions, and three topics."""
    folder = tmp_path_factory.mktemp("guarded") / "rocketmq"
    file = tmp_path_factory.mktemp("conf") / "plain_acl.yml"
    file.write_bytes(FILE.read_bytes())
    # In ms: a transaction that was left open is asked about at once.
    often = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
    settings = settings_of(cluster.version, folder) | often
    with own_cluster(cluster.version, folder, f"--conf={file}", **settings) as running:
        with Producer("p", name_servers=running.name_servers, **OWNER) as producer:
            for topic in ("orders", "prices", "till"):
                producer.send(Message(topic, b"0"))
        yield running


class Taken:
    """A listener and the bodies it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_there = threading.Event()

    def __call__(self, messages: Sequence[Any], context: object) -> None:
        self.bodies += [bytes(message.body) for message in messages]
        self.is_there.set()


def consumer_of(
    guarded: Cluster,
    group: str,
    topic: str,
    listener: Any,
    account: dict[str, str],
    on_failure: FailurePolicy | None = None,
) -> PushConsumer:
    consumer = PushConsumer(
        group,
        name_servers=guarded.name_servers,
        consume_from_where="first_offset",
        commit_interval_ms=100,
        on_failure=on_failure,
        **account,
    )
    consumer.subscribe(topic)
    consumer.orderly(listener)
    return consumer


def refusal_to_send(guarded: Cluster, topic: str, account: dict[str, str]) -> BrokerError:
    with (
        Producer("p", name_servers=guarded.name_servers, **account) as producer,
        pytest.raises(BrokerError) as caught,
    ):
        producer.send(Message(topic, b"x"))
    assert caught.value.topic == topic
    return caught.value


def refusal_to_consume(
    guarded: Cluster, group: str, topic: str, account: dict[str, str]
) -> BrokerError:
    consumer = consumer_of(guarded, group, topic, Taken(), account)
    with pytest.raises(BrokerError) as caught:
        consumer.start()
    return caught.value


def assert_says(error: BrokerError, guarded: Cluster, *words: str) -> None:
    text = str(error)
    for word in (*words, f"address='{guarded.addresses['broker-a']}'"):
        assert word in text, text


@contextlib.contextmanager
def ended_account(guarded: Cluster) -> Iterator[None]:
    """Remove the clerk: from the file, which 4.9 watches; on 5.x the account is disabled."""
    if guarded.version < "5":
        file = guarded.folder / "broker-a" / "conf" / "plain_acl.yml"
        whole = file.read_text()
        file.write_text(whole[: whole.index("  - accessKey: shop-clerk")])
        yield
        file.write_text(whole)
    else:
        put_status(guarded, "disable")
        yield
        put_status(guarded, "enable")


def put_status(guarded: Cluster, status: str) -> None:
    update_user = 3002
    request = Command.request(
        update_user, {"username": "shop-clerk"}, json.dumps({"userStatus": status}).encode()
    )
    Credentials(*OWNER.values()).sign(request)
    answer = guarded.ask("broker-a", request.code, dict(request.ext), request.body)
    assert answer.code == 0, answer.remark


def test_an_account_sends_and_consumes_with_permission(guarded: Cluster) -> None:
    taken = Taken()
    with Producer("clerks-own", name_servers=guarded.name_servers, **CLERK) as producer:
        for number in range(1, 20):
            producer.send(Message("orders", str(number).encode()), sharding_key="k")
    with consumer_of(guarded, "clerks", "orders", taken, CLERK) as consumer:
        eventually(lambda: len(taken.bodies) == 20, "what was sent")
        eventually(lambda: consumer.statistics["commits"] > 0, "it is committed")


def test_an_account_of_a_group_may_give_a_message_up(guarded: Cluster) -> None:
    """With the rights of a consumer alone: the letter is stored in the name of its own group."""
    taken = Taken()

    def listen(messages: Sequence[Any], context: object) -> None:
        if messages[0].body == b"poison":
            raise ValueError("a test's own failure")
        taken(messages, context)

    consumer = consumer_of(guarded, "clerks", "orders", listen, CLERK, DeadLetter(max_attempts=1))
    with Producer("owners", name_servers=guarded.name_servers, **OWNER) as producer, consumer:
        for body in (b"poison", b"behind the poison"):
            producer.send(Message("orders", body), sharding_key="k")
        eventually(lambda: b"behind the poison" in taken.bodies, "the queue goes on")
    with Admin(guarded.name_servers, **OWNER) as admin:
        letters = [bytes(letter.body) for letter in admin.peek("%DLQ%clerks")]
    assert letters == [b"poison"]


def test_an_account_that_may_send_to_a_topic_is_heard_when_the_broker_asks(
    guarded: Cluster,
) -> None:
    """Of a transaction: the account has no permission for the topic of half messages."""
    taken = Taken()
    producer = TransactionProducer(
        "clerks-own",
        name_servers=guarded.name_servers,
        check=lambda message: TransactionState.COMMIT,
        **CLERK,
    )
    with producer, consumer_of(guarded, "clerks", "orders", taken, CLERK):
        producer.send_in_transaction(
            Message("orders", b"asked about"), execute=lambda *_: TransactionState.UNKNOWN
        )
        eventually(lambda: b"asked about" in taken.bodies, "it is committed")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, ["the request was not signed: give access_key and secret_key"]),
        ({"access_key": "nobody-here", "secret_key": "any-secret"}, ["access_key='nobody-here'"]),
        (CLERK | {"secret_key": "wrong-secret"}, ["access_key='shop-clerk'", "its secret_key"]),
    ],
    ids=["unsigned", "unknown", "wrong secret"],
)
def test_an_unknown_account_is_told_what_to_check(
    guarded: Cluster, given: dict[str, str], told: list[str]
) -> None:
    assert_says(refusal_to_send(guarded, "orders", given), guarded, *told)
    assert_says(refusal_to_consume(guarded, "clerks", "orders", given), guarded, *told)


def test_a_topic_an_account_may_not_send_to_is_named(guarded: Cluster) -> None:
    for topic in ("prices", "till"):
        error = refusal_to_send(guarded, topic, CLERK)
        assert_says(error, guarded, topic, "access_key='shop-clerk'", "the account's permissions")


def test_a_topic_or_group_an_account_may_not_consume_is_named(guarded: Cluster) -> None:
    for group, topic, word in (("clerks", "till", "till"), ("others", "orders", "others")):
        error = refusal_to_consume(guarded, group, topic, CLERK)
        assert_says(error, guarded, word, "access_key='shop-clerk'", "the account's permissions")


@pytest.mark.parametrize("asks", ["ours", "java"])
def test_accounts_request_and_reply(guarded: Cluster, asks: str, tmp_path: Path) -> None:
    servers = guarded.name_servers
    replies = Producer("owners", name_servers=servers, **OWNER)
    requests = Producer("clerks-own", name_servers=servers, **CLERK)

    def reply(messages: Sequence[Any], context: object) -> None:
        for message in messages:
            if message.wants_reply:
                # Those of the test before lie in the topic, and nobody waits for them any more.
                with contextlib.suppress(BrokerError):
                    replies.reply(message, bytes(message.body).upper())

    group = f"owners-{asks}"
    with replies, requests, consumer_of(guarded, group, "orders", reply, OWNER):
        if asks == "ours":
            for body in (b"a", b"b"):
                assert bytes(requests.request(Message("orders", body), 20_000).body) == body.upper()
        else:
            java = JavaProcess(
                guarded.version, "Asker", tmp_path, group="java-asks", name_servers=servers, **CLERK
            )
            try:
                assert java.ask("orders c 20000")["reply"] == "C"
            finally:
                java.kill()


def test_a_member_logs_that_its_account_was_removed_and_recovers_when_it_is_back(
    guarded: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    taken = Taken()
    producer = Producer("owners", name_servers=guarded.name_servers, **OWNER)
    with producer, consumer_of(guarded, "clerks", "orders", taken, CLERK):
        producer.send(Message("orders", b"first"))
        assert taken.is_there.wait(DEADLINE_S)
        with ended_account(guarded):
            eventually(
                lambda: any(
                    "pull failed" in record.message and "shop-clerk" in record.message
                    for record in caplog.records
                ),
                "the log says who was refused",
            )
            error = refusal_to_send(guarded, "orders", CLERK)
            assert_says(error, guarded, "access_key='shop-clerk'")
        producer.send(Message("orders", b"at last"))
        eventually(lambda: b"at last" in taken.bodies, "the member goes on")
