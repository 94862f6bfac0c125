"""RocketMQ's proxy as the only address of a client: its remoting port, in cluster and local mode.

docs/proxy.md says what works, and links each row to the test that shows it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Admin,
    ConsumeResult,
    DeadLetter,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.errors import (
    BrokerError,
    ConnectionLost,
    KeyFailed,
    OrderMQError,
    RequestTimeout,
)
from ordermq.model.names import dead_letter_topic
from ordermq.remoting.codes import ResponseCode
from tests.interop.cluster import DEADLINE_S, Cluster, eventually
from tests.interop.own_cluster import own_cluster
from tests.interop.run import MEMBER_SETTINGS, Run

# A first test has its cluster made, which takes a minute and a half on a busy machine.
pytestmark = pytest.mark.timeout(300)
BROKERS = {"broker-a": 2, "broker-b": 2}
_NUMBERS = itertools.count(1)
# The proxy tells no member that others have come or gone: each looks by itself.
SOON: dict[str, Any] = {"rebalance_interval_ms": 1_000}


def start_proxy(
    cluster: Cluster, folder: Path, mode: str, brokers: int, **settings: str
) -> Iterator[Cluster]:
    """Start brokers and a proxy, whose remoting port takes the place of the name server's."""
    if cluster.version.startswith("4."):
        pytest.skip("the proxy came with RocketMQ 5")
    options = [f"--proxy={mode}", f"--brokers={brokers}"]
    settings |= {"enableMixedMessageType": "true"}
    with own_cluster(cluster.version, folder / "rocketmq", *options, **settings) as running:
        running.name_servers = running.proxies
        yield running


@pytest.fixture(scope="module")
def proxied(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers behind a proxy in cluster mode."""
    yield from start_proxy(
        cluster,
        tmp_path_factory.mktemp("proxy"),
        "cluster",
        2,
        enablePropertyFilter="true",
        recallMessageEnable="true",
        transactionTimeOut="1000",
        transactionCheckInterval="1000",
    )


@pytest.fixture
def run(proxied: Cluster, tmp_path: Path) -> Iterator[Run]:
    running = Run(proxied, tmp_path, f"proxy-{next(_NUMBERS)}")
    yield running
    running.close()


@pytest.fixture
def direct(proxied: Cluster) -> Iterator[Admin]:
    """The brokers as they are, without the proxy."""
    with Admin(proxied.addresses["name-server"]) as admin:
        yield admin


def put_topic(run: Run, brokers: dict[str, int] = BROKERS, kind: str = "MIXED") -> None:
    run.cluster.put_topic(run.topic, brokers, message_type=kind)


class Seen:
    """Numbers that a listener got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.numbers: list[int] = []

    def take(self, messages: Any, context: Any) -> None:
        with self._lock:
            self.numbers += [int(bytes(message.body)) for message in messages]


def member(run: Run, way: str, listen: Callable[..., Any], **settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        run.group, name_servers=run.cluster.name_servers, **(MEMBER_SETTINGS | SOON | settings)
    )
    consumer.subscribe(run.topic)
    getattr(consumer, way)(listen)
    return consumer


# -- Cluster mode: sends ---------------------------------------------------------------------


def test_single_batched_and_one_way_sends_keep_the_order_of_their_keys(run: Run) -> None:
    put_topic(run)
    run.send(200)  # merged into batches where they wait
    for number in range(200, 260):
        message = Message(run.topic, str(number).encode())
        run.producer.send(message, sharding_key=f"k{number % 16}")
    for number in range(260, 320, 4):
        batch = [Message(run.topic, str(each).encode()) for each in range(number, number + 4)]
        run.producer.send_batch(batch, sharding_key="batches")
    for number in range(320, 340):
        message = Message(run.topic, str(number).encode())
        run.producer.send_oneway(message, sharding_key="one-way")
    run.producer.flush()
    run.sent = 340
    run.member("m")
    run.wait_for_all()
    run.assert_keys_in_order()
    assert len({delivery.queue.broker_name for delivery in run.deliveries}) == 2
    assert run.duplicates() == 0


def test_a_topic_of_another_type_refuses_the_message(run: Run) -> None:
    put_topic(run, kind="NORMAL")
    run.producer.send(Message(run.topic, b"0"))
    with pytest.raises(BrokerError, match=r"expected type is NORMAL.*message\.type"):
        run.producer.send(Message(run.topic, b"1"), sharding_key="k")


def test_a_topic_for_messages_with_keys_takes_them_one_by_one(run: Run) -> None:
    put_topic(run, kind="FIFO")
    run.producer_settings = {"max_batch_bytes": 1}
    run.send(60)
    with pytest.raises(BrokerError, match="but actual type is NORMAL"):
        run.producer.send_batch([Message(run.topic, b"60"), Message(run.topic, b"61")])
    run.member("m")
    run.wait_for_all()
    run.assert_keys_in_order()


def test_delayed_and_timed_messages_arrive_and_one_is_recalled(run: Run) -> None:
    put_topic(run)
    run.member("m")
    gone = run.producer.send(Message(run.topic, b"gone", delay_ms=60_000))
    assert gone.recall_handle is not None
    run.producer.recall(run.topic, gone.recall_handle)
    begin_ms = time.time_ns() // 1_000_000
    run.producer.send(Message(run.topic, b"level", delay_level=1))
    run.producer.send(Message(run.topic, b"timed", deliver_at_ms=begin_ms + 3_000))
    run.wait_for(lambda seen: {d.body for d in seen} == {b"level", b"timed"}, "both")


def test_a_transaction_is_committed_when_the_broker_asks_and_a_key_fails(run: Run) -> None:
    put_topic(run)
    run.member("m")
    committed = TransactionState.COMMIT
    producer = TransactionProducer(
        f"transactions-{run.group}",
        execute=lambda message, argument: argument,
        check=lambda message: (
            committed if bytes(message.body) != b"back" else TransactionState.ROLLBACK
        ),
        name_servers=run.cluster.name_servers,
    )
    with producer:
        producer.send_in_transaction(Message(run.topic, b"plain"), committed)
        producer.send_in_transaction(Message(run.topic, b"back"), TransactionState.ROLLBACK)
        producer.send_in_transaction(Message(run.topic, b"keyed"), committed, sharding_key="k")
        with pytest.raises(KeyFailed, match="proxy confirms no transaction"):
            producer.send_in_transaction(Message(run.topic, b"next"), committed, sharding_key="k")
        run.wait_for(lambda seen: {d.body for d in seen} >= {b"plain", b"keyed"}, "both")
    assert {delivery.body for delivery in run.deliveries} == {b"plain", b"keyed"}


# -- Cluster mode: push consumers ------------------------------------------------------------


@pytest.mark.parametrize("way", ["orderly", "by key", "concurrently"])
def test_a_push_consumer_gets_everything_once(run: Run, way: str) -> None:
    put_topic(run)
    run.send(200)
    seen = Seen()
    by_key = way == "by key"
    settings = {"order_by_key": True} if by_key else {}
    with member(run, "orderly" if by_key else way, seen.take, **settings):
        eventually(lambda: len(seen.numbers) >= 200, "everything")
    assert sorted(seen.numbers) == list(range(200))
    if way == "concurrently":
        return
    for key in range(16):
        own = [number for number in seen.numbers if number % 16 == key]
        assert own == sorted(own)


def test_members_that_join_and_leave_lose_and_repeat_nothing(run: Run) -> None:
    put_topic(run)
    run.member("one", **SOON)
    with run.flow():
        run.wait_for_more(100, "one")
        run.member("two", **SOON)
        run.wait_for_shares(one=2, two=2)
        run.wait_for_more(100, "two")
        run.leave("one")
        run.wait_for_shares(two=4)
    run.assert_sound()
    assert run.duplicates() == 0


@pytest.mark.restarts
def test_the_queues_of_a_broker_that_dies_behind_the_proxy_go_on_when_it_is_back(run: Run) -> None:
    put_topic(run)
    run.member("one", **SOON)
    with run.flow(0.1):
        run.wait_for_more(50, "one")
        run.cluster.kill("broker-b")
        run.cluster.start("broker-b")
        before = len(run.deliveries)
        run.wait_for(
            lambda seen: any(each.queue.broker_name == "broker-b" for each in seen[before:]),
            "its queues go on",
        )
    run.wait_for_all()
    run.assert_keys_in_order()


def test_fence_tokens_grow_from_owner_to_owner(run: Run) -> None:
    put_topic(run)
    epochs: dict[MessageQueue, list[int]] = defaultdict(list)

    def listen(messages: Any, context: Any) -> None:
        epoch, _ = context.fence_token
        epochs[context.message_queue].append(epoch)

    for _ in range(3):  # an owner after the other
        run.send(64)
        seen = Seen()
        with member(run, "orderly", lambda m, c, s=seen: (listen(m, c), s.take(m, c))[1]):
            eventually(lambda seen=seen: len(seen.numbers) == 64, "what is new")
    assert len(epochs) == 4
    for queue, own in epochs.items():
        assert own == sorted(own), queue
        assert len(set(own)) == 3, f"{queue}: an owner without an epoch of its own"


def test_a_restarted_member_goes_on_from_the_stored_offsets(run: Run, direct: Admin) -> None:
    put_topic(run)
    run.send(60)
    run.member("one")
    run.wait_for_all()
    run.leave("one")
    assert direct.group(run.group, [run.topic]).lag == 0  # as the brokers have them
    run.send(40)
    run.member("two")
    run.wait_for_all()
    assert run.count_of("two") == 40
    run.assert_sound()


def test_tags_and_sql_select_at_the_broker(run: Run) -> None:
    put_topic(run)
    for number in range(60):
        properties = {"a": str(number % 10)}
        tag = "even" if number % 2 == 0 else "odd"
        message = Message(run.topic, str(number).encode(), tags=tag, properties=properties)
        run.producer.send(message, sharding_key=f"k{number % 8}")
    for name, subscription in {"tag": {"expression": "even"}, "sql": {"sql": "a > 6"}}.items():
        seen = Seen()
        consumer = PushConsumer(
            f"{run.group}-{name}", name_servers=run.cluster.name_servers, **MEMBER_SETTINGS
        )
        consumer.subscribe(run.topic, **subscription)
        consumer.orderly(seen.take)
        wanted = {n for n in range(60) if (n % 2 == 0 if name == "tag" else n % 10 > 6)}
        with consumer:
            eventually(lambda seen=seen, wanted=wanted: set(seen.numbers) >= wanted, name)
        assert set(seen.numbers) == wanted


def test_failed_messages_come_again_or_become_dead_letters(run: Run, direct: Admin) -> None:
    put_topic(run)
    run.send(40)
    seen = Seen()

    def listen(messages: Any, context: Any) -> ConsumeResult:
        number = int(bytes(messages[0].body))
        if number == 8 or (number == 7 and context.attempt == 0):
            context.delay_level = -1 if number == 8 else 1
            return ConsumeResult.SUSPEND
        seen.take(messages, context)
        return ConsumeResult.SUCCESS

    settings = {"consume_message_batch_max_size": 1}
    with member(run, "concurrently", listen, **settings):
        eventually(lambda: len(seen.numbers) == 39, "all but the one that is given up")
    assert sorted(seen.numbers) == [number for number in range(40) if number != 8]
    letters = dead_letter_topic(run.group)
    eventually(lambda: len(direct.peek(letters, start="first")) == 1, "the dead letter")


def test_an_orderly_listener_gives_up_into_the_dead_letter_topic(run: Run, direct: Admin) -> None:
    put_topic(run)
    run.send(40)
    seen = Seen()

    def listen(messages: Any, context: Any) -> None:
        if bytes(messages[0].body) == b"8":
            raise ValueError("a test's own failure")
        seen.take(messages, context)

    settings = {
        "on_failure": DeadLetter(max_attempts=2),
        "suspend_current_queue_time_ms": 10,
        "consume_message_batch_max_size": 1,
    }
    with member(run, "orderly", listen, **settings):
        eventually(lambda: len(seen.numbers) == 39, "all but the one that is given up")
    letters = dead_letter_topic(run.group)
    eventually(lambda: len(direct.peek(letters, start="first")) == 1, "the dead letter")


# -- Cluster mode: pull consumers ------------------------------------------------------------


def test_pull_consumers_read_seek_and_store_offsets(run: Run) -> None:
    put_topic(run)
    run.send(120)
    servers = run.cluster.name_servers
    settings = {"consume_from_where": "first_offset", "auto_commit": False}
    with LitePullConsumer(run.group, name_servers=servers, ordered=True, **settings) as lite:
        lite.subscribe(run.topic)
        got: list[int] = []
        end = time.monotonic() + DEADLINE_S
        while len(got) < 120 and time.monotonic() < end:
            got += [int(bytes(message.body)) for message in lite.poll(500)]
        assert sorted(got) == list(range(120))
        lite.commit()
    with PullConsumer(run.group, name_servers=servers) as plain:
        queues = plain.fetch_subscribe_message_queues(run.topic)
        assert len(queues) == 4
        assert sum(plain.fetch_consume_offset(queue) for queue in queues) == 120
        assert sum(plain.max_offset(queue) - plain.min_offset(queue) for queue in queues) == 120
        pulled = plain.pull(queues[0], "*", 0, 32)
        assert pulled.status is PullStatus.FOUND
        assert plain.search_offset(queues[0], 0) == 0


# -- Cluster mode: what the proxy does not serve ---------------------------------------------


def test_admin_requests_are_refused_and_say_where_to_go(run: Run) -> None:
    with Admin(run.cluster.name_servers) as admin, pytest.raises(BrokerError) as refused:
        admin.topics()
    assert refused.value.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "the name servers' own addresses" in str(refused.value)


def test_a_reply_is_refused_and_says_so(run: Run) -> None:
    put_topic(run)
    failures: list[BrokerError] = []
    with Producer("answers", name_servers=run.cluster.name_servers) as answering:

        def listen(messages: Any, context: Any) -> None:
            for message in messages:
                try:
                    answering.reply(message, b"yes")
                except BrokerError as error:
                    failures.append(error)

        with member(run, "orderly", listen), pytest.raises(OrderMQError):
            run.producer.request(Message(run.topic, b"?"), 5_000)
    assert failures
    assert "does not serve this request" in str(failures[0])


# -- Local mode ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker in the process of a proxy in local mode."""
    yield from start_proxy(cluster, tmp_path_factory.mktemp("local"), "local", 1)


def told_address(cluster: Cluster, topic: str) -> str:
    """Return the address that the proxy tells of its broker: its host with the port for gRPC."""
    with Producer("look", name_servers=cluster.name_servers) as producer:
        producer.queues(topic)
        client = producer._client
        assert client is not None
        return client.routes.master_of("broker-a")


def test_local_mode_serves_routes_only_and_those_lead_to_the_port_for_grpc(
    local: Cluster, tmp_path: Path
) -> None:
    run = Run(local, tmp_path, "local-alone")
    put_topic(run, {"broker-a": 2})
    told = told_address(local, run.topic)
    assert told not in (local.proxies, local.addresses["broker-a"])
    message = Message(run.topic, b"0")
    alone: dict[str, Any] = {"name_servers": local.proxies, "retry_times": 0}
    with Producer("p", **alone) as producer, pytest.raises(ConnectionLost):
        producer.send(message, sharding_key="k")
    # The refusal has an id that nobody asked with (rmq#10280).
    with (
        Producer("p", **alone, address_map={told: local.proxies}) as producer,
        pytest.raises(RequestTimeout),
    ):
        producer.send(message, sharding_key="k")


def test_an_address_map_leads_past_a_proxy_in_local_mode_to_its_broker(
    local: Cluster, tmp_path: Path
) -> None:
    run = Run(local, tmp_path, "local-mapped")
    put_topic(run, {"broker-a": 4})
    reach = {"address_map": {told_address(local, run.topic): local.addresses["broker-a"]}}
    run.producer_settings = reach
    try:
        run.member("one", **reach)
        with run.flow():
            run.wait_for_more(50, "one")
            run.member("two", **reach)  # told by the broker, as without a proxy
            run.wait_for_shares(one=2, two=2)
            run.leave("one")
            run.wait_for_shares(two=4)
        run.assert_sound()
        assert run.duplicates() == 0
    finally:
        run.close()
