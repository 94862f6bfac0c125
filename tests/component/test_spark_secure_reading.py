"""Reading ranges as an executor does, without Spark, from brokers with TLS and with accounts.

What a task is given are the options of the driver, and the engine alone reads: it deciphers each
answer and signs each pull.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.config import AccessPolicy, BrokerConfig
from ordermq.errors import BrokerError, OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import SourceOptions
from ordermq.spark.source import queue_reader
from ordermq.spark.source.offsets import resolve_snapshot
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from tests.component.certificates import Authority, Certificate
from tests.component.damaging_proxy import (
    CuttingProxy,
    RandomCuts,
    RandomFlips,
    lead_through,
    speak_tls_up_to,
)

COUNT = 1_000
RANGES = [QueueRange("orders", "b", queue, 0, COUNT) for queue in (1, 2)]
ACCOUNT = {"access_key": "spark", "secret_key": "the secret"}


@contextlib.contextmanager
def filled(config: BrokerConfig, **settings: Any) -> Iterator[EmbeddedBroker]:
    """A broker with COUNT messages in queue 1 and in queue 2, every third with tag a.

    Args: settings: of the producer.
    """
    with EmbeddedBroker(config=config) as broker:
        with Producer("p", name_servers=broker.name_servers, **settings) as producer:
            queues = [MessageQueue("orders", "b", number) for number in (1, 2)]
            producer.send(Message("orders", b"0", tags="a"), queue=queues[0])
            producer.send(Message("orders", b"0", tags="a"), queue=queues[1])
            for queue in queues:
                for first in range(1, COUNT, 100):
                    numbers = range(first, min(first + 100, COUNT))
                    batch = [Message("orders", b"%d" % n, tags="abc"[n % 3]) for n in numbers]
                    producer.send_batch(batch, queue=queue)
        yield broker


def of_server(server: Certificate, **more: Any) -> BrokerConfig:
    return BrokerConfig(
        broker_name="b",
        durability="os",
        tls_certificate=server.certificate,
        tls_key=server.key,
        **more,
    )


def read(broker: EmbeddedBroker, **more: str) -> list[tuple[int, int, bytes]]:
    """Read the ranges with a task's options, as a task does."""
    given = {"name_servers": broker.name_servers, "topic": "orders", "pull_batch_size": "20"}
    options = SourceOptions.of(given | more)
    with contextlib.closing(ClientSession(options.name_servers, options.remoting)) as session:
        batches = list(read_ranges(session, options, RANGES))
    table = pa.Table.from_batches(batches)
    return list(
        zip(*(table[name].to_pylist() for name in ("queue_id", "offset", "body")), strict=True)
    )


ALL = [(queue, n, b"%d" % n) for queue in (1, 2) for n in range(COUNT)]


# ---- TLS ----


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_task_reads_its_queues_whole_through_records_in_pieces(
    server_certificate: Certificate,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    newest: ssl.TLSVersion,
) -> None:
    with filled(of_server(server_certificate), tls=True, tls_ca_file=authority.file) as broker:
        speak_tls_up_to(newest, monkeypatch)
        with CuttingProxy(broker.address, RandomCuts(5)) as proxy:
            lead_through(proxy, broker.address, monkeypatch)
            assert read(broker, tls="true", tls_ca_file=authority.file) == ALL


def test_records_that_were_damaged_on_the_way_are_read_again(
    server_certificate: Certificate, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "_RETRY_MS", 1)
    flips = RandomFlips(3, share=0.3)
    trusted = {"tls": "true", "tls_ca_file": authority.file, "reconnect_delay_ms": "1"}
    with (
        filled(of_server(server_certificate), tls=True, tls_ca_file=authority.file) as broker,
        CuttingProxy(broker.address, flips) as proxy,
    ):
        lead_through(proxy, broker.address, monkeypatch)
        assert read(broker, **trusted, read_timeout_ms="60000") == ALL
    assert flips.count > 3


def test_a_server_nobody_vouches_for_is_not_read(
    server_certificate: Certificate, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    with filled(of_server(server_certificate), tls=True, tls_ca_file=authority.file) as broker:
        with pytest.raises(OrderMQError, match=r"certificate is not trusted.*give tls_ca_file="):
            read(broker, tls="true", tls_ca_file=stranger.file, read_timeout_ms="1")
        with pytest.raises(OrderMQError, match="TLS"):
            read(broker, read_timeout_ms="1")


def test_a_task_shows_the_certificate_that_its_broker_asks_for(
    server_certificate: Certificate, authority: Authority
) -> None:
    ours = authority.sign("executor")
    own: dict[str, Any] = {
        "tls_ca_file": authority.file, "tls_certificate": ours.certificate, "tls_key": ours.key,
    }  # fmt: skip
    config = of_server(server_certificate, tls_client_ca_file=authority.file)
    with filled(config, tls=True, **own) as broker:
        assert read(broker, tls="true", **own) == ALL
        with pytest.raises(OrderMQError, match="a client certificate"):
            read(broker, tls="true", tls_ca_file=authority.file, read_timeout_ms="1")


# ---- accounts ----


def of_accounts(**more: Any) -> BrokerConfig:
    accounts = {"spark": "the secret", "shop": "another"}
    return BrokerConfig(broker_name="b", durability="os", accounts=accounts, **more)


def test_a_task_signs_each_of_its_pulls() -> None:
    with filled(of_accounts(), access_key="shop", secret_key="another") as broker:
        assert read(broker, **ACCOUNT) == ALL
        wanted = [each for each in ALL if each[1] % 3 == 0]
        assert read(broker, tags="a", **ACCOUNT) == wanted


def test_a_task_signs_its_pulls_through_tls(
    server_certificate: Certificate, authority: Authority
) -> None:
    trusted: dict[str, Any] = {"tls_ca_file": authority.file}
    config = of_server(server_certificate, accounts={"spark": "the secret"})
    with filled(config, tls=True, **trusted, **ACCOUNT) as broker:
        assert read(broker, tls="true", **trusted, **ACCOUNT) == ALL


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "not signed.*give access_key and secret_key"),
        (ACCOUNT | {"secret_key": "wrong"}, "access_key='spark': check that key, its secret_key"),
        (ACCOUNT | {"access_key": "nobody"}, "no account has the access key 'nobody'"),
    ],
    ids=["no account", "wrong secret", "unknown account"],
)
def test_a_task_with_other_keys_is_told_what_to_check(given: dict[str, str], told: str) -> None:
    with (
        filled(of_accounts(), access_key="shop", secret_key="another") as broker,
        pytest.raises(BrokerError, match=told) as reading,
    ):
        read(broker, **given)
    assert "wrong'" not in str(reading.value)


def test_a_query_reads_what_its_account_may_and_is_told_what_is_missing() -> None:
    given = {"topic": "orders"} | ACCOUNT
    group = SourceOptions.of({"name_servers": "n:1"} | given).read_group
    may = [AccessPolicy("Topic:orders", ["SUB", "GET"]), AccessPolicy(f"Group:{group}", "SUB")]
    for policies, missing in (
        (may, None), (may[:1], f"group '{group}'"), (may[1:], "topic 'orders'"),
    ):  # fmt: skip
        config = of_accounts(policies={"spark": policies, "shop": [AccessPolicy("*", "ALL")]})
        with filled(config, access_key="shop", secret_key="another") as broker:
            if missing is None:
                options = SourceOptions.of({"name_servers": broker.name_servers} | given)
                session = ClientSession(options.name_servers, options.remoting)
                with contextlib.closing(session):
                    snapshot = session.call(resolve_snapshot(session, options))
                assert [snapshot[each.queue] for each in RANGES] == [(0, COUNT)] * 2
                assert read(broker, **ACCOUNT) == ALL
                continue
            with pytest.raises(BrokerError, match=f"no permission for .*{missing}"):
                read(broker, **ACCOUNT)
