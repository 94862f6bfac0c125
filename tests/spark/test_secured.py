"""Account and TLS options reach every Spark process that talks to a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import Producer
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.spark import apply_in_order
from tests.component.certificates import Authority
from tests.spark.conftest import DEADLINE_S, assert_in_order, numbers, send

TLS_FILES = ("tls_ca_file", "tls_certificate", "tls_key")
ACCOUNT = {"access_key": "shop", "secret_key": "the secret"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedBroker]:
    """Serves its account only, to whom has a certificate of the authority."""
    server = authority.sign("server")
    config = BrokerConfig(
        broker_name="b",
        durability="os",
        accounts={"shop": "the secret"},
        tls_certificate=server.certificate,
        tls_key=server.key,
        tls_client_ca_file=authority.file,
    )
    with EmbeddedBroker(config=config) as running:
        yield running


@pytest.fixture(scope="module")
def tls(authority: Authority) -> dict[str, str]:
    ours = authority.sign("ours")
    files = {"tls_certificate": ours.certificate, "tls_key": ours.key}
    return {"tls_ca_file": authority.file} | files


@pytest.fixture
def options(secured: EmbeddedBroker, tls: dict[str, str]) -> dict[str, str]:
    """All that the formats need but the topic."""
    return {"name_servers": secured.name_servers, "tls": "true"} | tls | ACCOUNT


@pytest.fixture(scope="module")
def sent(secured: EmbeddedBroker, tls: dict[str, str]) -> None:
    settings: dict[str, Any] = {"name_servers": secured.name_servers, "tls": True}
    with Producer("p", default_topic_queue_nums=4, **settings, **tls, **ACCOUNT) as producer:
        send(producer, 200)


@pytest.mark.usefixtures("sent")
def test_source_lease_check_and_sink_use_account_and_tls(
    spark: Any, options: dict[str, str], tmp_path: Path
) -> None:
    source = spark.readStream.format("ordermq").options(**options, topic="orders", group="etl")
    rows = source.load()

    def held(batch: Any, context: Any) -> Any:
        assert context.lease is not None  # the fence asked the broker before this call
        return batch

    stage = apply_in_order(rows, held, rows.schema, engine="arrow")
    query = (
        stage.writeStream.format("ordermq")
        .options(**options, topic="copied")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    copied = spark.read.format("ordermq").options(**options, topic="copied").load()
    found = copied.orderBy("queue_id", "offset").collect()
    assert numbers(found) == list(range(200))
    assert_in_order(found)


@pytest.mark.usefixtures("sent")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secret_key": "another"}, r"signed as access_key='shop': check"),
        (dict.fromkeys(TLS_FILES, "") | {"tls": "false"}, r"does it require TLS \(tls=True\)\?"),
        ({"tls_certificate": "", "tls_key": ""}, r"a client certificate"),
    ],
    ids=["secret", "no TLS", "no certificate"],
)
def test_errors_of_refused_connections_name_what_to_check(
    spark: Any, options: dict[str, str], wrong: dict[str, str], said: str
) -> None:
    given = options | wrong
    with pytest.raises(Exception, match=said):
        spark.read.format("ordermq").options(**given, topic="orders").load().collect()
    rows = spark.sql("SELECT 'text' AS body")
    with pytest.raises(Exception, match=said):
        rows.write.format("ordermq").options(**given, topic="copied", retry_times="0").mode(
            "append"
        ).save()
