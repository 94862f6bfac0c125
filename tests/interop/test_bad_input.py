"""Errors of real servers: each says what happened, where, and what to do.

Wrong addresses are in tests/component/test_bad_input_client.py, accounts and permissions in
test_permissions.py, members with different subscriptions in test_subscription_check.py.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ordermq import LitePullConsumer, Message, Producer, PushConsumer
from ordermq.errors import BrokerError, ConfigError, OrderMQError, RouteError
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import Run

TLS = {"tls": True, "tls_verify": "none"}
PATIENCE = {"retry_times": 1, "request_timeout_ms": 2_000}


@pytest.fixture(scope="module")
def strict(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start brokers that create no topics, accept only small messages, and have no TLS."""
    folder = tmp_path_factory.mktemp("strict") / "rocketmq"
    with own_cluster(
        cluster.version,
        folder,
        "--java=-Dtls.server.mode=disabled",
        autoCreateTopicEnable="false",
        maxMessageSize="10000",
    ) as running:
        running.put_topic("orders", {"broker-a": 2})
        yield running


@pytest.fixture(scope="module")
def secret(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a broker that accepts only TLS; its name server accepts both."""
    folder = tmp_path_factory.mktemp("secret") / "rocketmq"
    with own_cluster(
        cluster.version, folder, "--java=broker-a:-Dtls.server.mode=enforcing"
    ) as running:
        yield running


class Disk:
    """A small disk for one broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Fill it to 95 %; a broker refuses messages from 90 % on, and exits on a full disk."""
        usage = shutil.disk_usage(self.folder)
        self._filler.write_bytes(bytes(usage.total * 95 // 100 - usage.used))

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    # A memory file system: a write there fails when it is full, as on a disk.
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "ordermq-tests", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk for the broker cannot be mounted: {done.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        # Lazy: on a busy machine the broker's process may still be ending.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refusal(servers: str, topic: str, body: bytes = b"x", **settings: object) -> OrderMQError:
    with (
        Producer("p", name_servers=servers, **PATIENCE | settings) as producer,
        pytest.raises(OrderMQError) as caught,
    ):
        producer.send(Message(topic, body))
    return caught.value


def assert_says(error: OrderMQError, *words: str) -> None:
    for word in words:
        assert word in str(error), str(error)


def is_told(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return any(all(word in record.message for word in words) for record in caplog.records)


def consumers_of(servers: str, topic: str) -> list[PushConsumer | LitePullConsumer]:
    """Return one consumer of each kind, not started."""
    push = PushConsumer("g-push", name_servers=servers)
    push.subscribe(topic)
    push.orderly(lambda messages, context: None)
    lite = LitePullConsumer("g-lite", name_servers=servers)
    lite.subscribe(topic)
    return [push, lite]


def test_a_topic_that_no_broker_has_or_creates(
    strict: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(strict.name_servers, "unknown")
    assert isinstance(error, RouteError)
    assert_says(error, "topic='unknown'", "topic not found on any broker", "create it")
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    for consumer in consumers_of(strict.name_servers, "unknown"):
        caplog.clear()
        with consumer:
            eventually(
                lambda: is_told(caplog, "unknown", "create it"),
                f"{consumer} says that it waits, and for what",
            )


def test_a_message_over_the_limit_of_the_broker_and_one_over_that_of_the_client(
    strict: Cluster,
) -> None:
    error = refusal(
        strict.name_servers, "orders", b"x" * 20_000, compress_msg_body_over_howmuch=1 << 31
    )
    assert isinstance(error, BrokerError)
    assert_says(error, "topic='orders'", "broker='broker-a'", "20000 bytes", "maxMessageSize")
    error = refusal(strict.name_servers, "orders", b"x" * 101, max_message_bytes=100)
    assert isinstance(error, ConfigError)
    assert_says(error, "topic='orders'", "101", "max_message_bytes")


def test_messages_that_only_together_are_over_the_limit_of_the_broker(strict: Cluster) -> None:
    settings = PATIENCE | {"compress_msg_body_over_howmuch": 1 << 31}
    with Producer("p", name_servers=strict.name_servers, **settings) as producer:
        futures = [
            producer.send_nowait(Message("orders", b"x" * 3_000), sharding_key="k")
            for _ in range(40)
        ]
        offsets = [future.result(DEADLINE_S).queue_offset for future in futures]
        assert offsets == list(range(offsets[0], offsets[0] + 40))
        with pytest.raises(BrokerError, match="maxMessageSize"):
            producer.send_batch([Message("orders", b"x" * 3_000)] * 4, sharding_key="k")


def test_a_broker_whose_disk_is_full_and_then_has_space_again(
    cluster: Cluster, disk: Disk, tmp_path: Path
) -> None:
    store = disk.folder / "store"
    with own_cluster(
        cluster.version,
        tmp_path / "rocketmq",
        storePathRootDir=str(store),
        storePathCommitLog=str(store / "commitlog"),
    ) as running:
        running.put_topic("orders", {"broker-a": 1})
        with Producer("p", name_servers=running.name_servers, **PATIENCE) as producer:
            producer.send(Message("orders", b"before"))
            disk.fill()
            refused: list[OrderMQError] = []

            def is_refused() -> bool:
                try:
                    producer.send(Message("orders", b"x"), sharding_key="k")
                except OrderMQError as error:
                    refused.append(error)
                return bool(refused)

            # RocketMQ 5 looks at its disk a minute after its start, then every ten seconds.
            eventually(is_refused, "the broker refuses", deadline_s=2 * DEADLINE_S)
            assert isinstance(refused[0], BrokerError)
            assert_says(
                refused[0],
                "disk",
                "topic='orders'",
                "broker='broker-a'",
                running.addresses["broker-a"],
                "nothing was stored: free space on the broker's disk",
            )
        consumer = LitePullConsumer(
            "g", name_servers=running.name_servers, consume_from_where="first_offset"
        )
        consumer.subscribe("orders")
        with consumer:
            batch = consumer.poll(30_000)
            assert bytes(batch[0].body) == b"before", "what is there is still read"
        patient = Producer("p", name_servers=running.name_servers, retry_times=1_000)
        with patient, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(patient.send, Message("orders", b"after"), sharding_key="k")
            disk.make_room()
            assert waiting.result(DEADLINE_S).queue_offset > 0


def test_tls_to_servers_without_tls(strict: Cluster) -> None:
    error = refusal(strict.name_servers, "orders", **TLS)
    assert_says(
        error, strict.name_servers, "check that the server speaks TLS on this port", "tls=False"
    )


def test_no_tls_to_a_broker_that_accepts_only_tls(
    secret: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(secret.name_servers, "orders")
    assert_says(error, secret.addresses["broker-a"], "tls=True")
    caplog.set_level(logging.WARNING)
    for consumer in consumers_of(secret.name_servers, "orders"):
        caplog.clear()
        with consumer:
            eventually(
                lambda: is_told(caplog, secret.addresses["broker-a"], "tls=True"),
                f"{consumer} says what to set",
            )


def test_a_topic_that_may_not_be_written_or_read(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    servers = run.cluster.name_servers
    run.cluster.put_topic(run.topic, {"broker-a": 2}, perm=4)
    error = refusal(servers, run.topic)
    assert_says(error, run.topic, "may be written to")
    run.cluster.put_topic(run.topic, {"broker-a": 2}, perm=2)
    with Producer("p", name_servers=servers) as producer:
        producer.send(Message(run.topic, b"x"))
    caplog.set_level(logging.WARNING, "ordermq.consumer")
    for consumer in consumers_of(servers, run.topic):
        caplog.clear()
        with consumer:
            eventually(
                lambda: is_told(caplog, run.topic, "is readable", "updateTopicPerm"),
                f"{consumer} says why nothing comes",
            )


def test_characters_that_properties_cannot_hold_are_refused_before_they_are_sent(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1})
    for text in ("a\x01b", "\x02"):
        for given in ({"properties": {"name": text}}, {"properties": {text: "v"}}, {"tags": text}):
            with (
                Producer("p", name_servers=run.cluster.name_servers) as producer,
                pytest.raises(ConfigError, match=r"U\+0001 and U\+0002"),
            ):
                producer.send(Message(run.topic, b"x", **given))
