"""A stream, a batch and the sink tell apart: no topic yet, deleted, closed, its broker away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from ordermq import Message, Producer, json_text
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker, server
from ordermq.broker.connection import RequestRefused
from ordermq.client.session import ClientSession
from ordermq.config import BrokerConfig, ProducerConfig, RemotingConfig, SendConfig
from ordermq.errors import (
    BrokerError,
    DataLoss,
    LockRefused,
    OrderMQError,
    RouteError,
    StateError,
)
from ordermq.model.message_queue import MessageQueue
from ordermq.model.properties import decode
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command
from ordermq.spark.options import SinkOptions, SourceOptions
from ordermq.spark.sink.block_sender import BlockSender, block_sender
from ordermq.spark.sink.row_encoder import RowEncoder
from ordermq.spark.source.offsets import StreamOffset, resolve_snapshot
from ordermq.spark.source.queue_reader import QueueRange, read_ranges
from ordermq.spark.source.stream_driver import StreamDriver
from tests.component.conftest import eventually

QUEUES = [MessageQueue("orders", "b", number) for number in range(2)]
CLOSED = r"the topic is closed for reads at b \(its perm lacks 4.*mqadmin updateTopicPerm -p 6"
NO_TOPIC = "topic not found on any broker: create it first"
GROUPS = pytest.mark.parametrize("group", [{}, {"group": "g", "lock_wait_ms": "300"}])


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(name_servers=broker.name_servers) as running:
        yield running


@pytest.fixture
def options(broker: EmbeddedBroker) -> Callable[..., SourceOptions]:
    def make(**more: str) -> SourceOptions:
        given = {"name_servers": broker.name_servers, "topic": "orders"}
        given |= {"route_interval_ms": "50", "read_timeout_ms": "300"}
        return SourceOptions.of(given | {"forget_broker_after_ms": "300"} | more)

    return make


@pytest.fixture
def run(options: Callable[..., SourceOptions]) -> Iterator[Callable[..., StreamDriver]]:
    made: list[StreamDriver] = []

    def make(**more: str) -> StreamDriver:
        made.append(StreamDriver(options(**more)))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def session(broker: EmbeddedBroker) -> Iterator[ClientSession]:
    with contextlib.closing(ClientSession(broker.name_servers, RemotingConfig())) as running:
        yield running


def permit(session: ClientSession, broker: EmbeddedBroker, perm: int) -> None:
    """Create the topic, or change its permission, as `mqadmin updateTopicPerm` does."""
    ext = {"topic": "orders", "defaultTopic": "TBW102", "perm": str(perm), "order": "false"}
    ext |= {"topicFilterType": "SINGLE_TAG", "readQueueNums": "2", "writeQueueNums": "2"}
    command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    address = broker.name_servers
    assert session.call(session.connections.request(address, command, 3_000)).code == 0


def fill(producer: Producer) -> None:
    for queue in QUEUES:
        producer.send_batch([Message("orders", b"%d" % n) for n in range(5)], queue=queue)


def first_batch(
    driver: StreamDriver, limit: int | None = None
) -> tuple[StreamOffset, StreamOffset]:
    start = driver.initial()
    end = driver.next_end(start, limit)
    assert end is not None
    driver.begin_batch(start, end)
    return start, end


def failure_of(driver: StreamDriver, at: StreamOffset) -> OrderMQError:
    """Return the error with which a running query ends."""
    found: list[OrderMQError] = []

    def fails() -> bool:
        try:
            assert driver.next_end(at, None) is None
        except OrderMQError as error:
            found.append(error)
        return bool(found)

    eventually(fails, "the query ends")
    return found[0]


@GROUPS
def test_a_topic_that_is_not_there_yet_is_to_be_created(session, options, run, group):
    with pytest.raises(RouteError, match=NO_TOPIC):
        run(**group).initial()
    with pytest.raises(RouteError, match=NO_TOPIC):
        session.call(resolve_snapshot(session, options(**group)))


@pytest.mark.parametrize("perm", [2, 0], ids=["write only", "withdrawn"])
@GROUPS
def test_a_topic_that_is_closed_for_reads_is_to_be_opened(
    broker, session, options, run, group, perm
):
    permit(session, broker, perm)
    with pytest.raises(RouteError, match=CLOSED):
        run(**group).initial()
    with pytest.raises(RouteError, match=CLOSED):
        session.call(resolve_snapshot(session, options(**group)))


@pytest.mark.parametrize(
    ("perm", "limit"), [(2, 4), (0, None)], ids=["write only, with a backlog", "withdrawn"]
)
@GROUPS
def test_a_running_query_waits_for_a_topic_that_is_closed_for_reads_and_says_so_once(
    broker, session, producer, run, caplog, group, perm, limit
):
    permit(session, broker, 6)
    fill(producer)
    driver = run(**group)
    _, end = first_batch(driver, limit)
    permit(session, broker, perm)  # the route does not tell it before it is asked for again
    told = "The query waits for it"
    eventually(lambda: driver.next_end(end, None) is None and told in caplog.text, told)
    opened = session.clock.now_ms() + 900  # three times as long as a broker that is away may be
    eventually(
        lambda: driver.next_end(end, None) is None and session.clock.now_ms() > opened, "a wait"
    )
    assert caplog.text.count(told) == 1
    now = run(**group | ({"release_in_flight": "afterPause"} if group else {}), ordered="false")
    now.freeze_end()
    with pytest.raises(RouteError, match=r"closed for reads|topic not found"):
        now.next_end(end, None)
    permit(session, broker, 6)
    fill(producer)
    found: list[StreamOffset] = []
    eventually(lambda: found.append(driver.next_end(end, None)) or found[-1], "its messages")


def test_a_read_only_topic_is_read_and_not_written(broker, session, producer, options, run):
    permit(session, broker, 6)
    fill(producer)
    permit(session, broker, 4)
    _, end = first_batch(run())
    assert end.queues == dict.fromkeys(QUEUES, 5)
    sender = BlockSender(broker.name_servers, producer.config, "p", "java")
    with pytest.raises(RouteError, match=r"no queue of this topic may be written to.*have it open"):
        sender.queues("orders")


def test_a_task_of_the_sink_waits_for_a_name_server_that_comes_back(
    broker: EmbeddedBroker, broker_config: BrokerConfig, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    address, port = broker.name_servers, broker.port
    broker.close()
    config = ProducerConfig(send=SendConfig(retry_times=100))
    sender = BlockSender(address, config, "p", "java")
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(sender.queues, "orders")
        eventually(lambda: "route request failed" in caplog.text, "it was asked for in vain")
        with EmbeddedBroker(tmp_path / "next.db", port=port, config=broker_config):
            assert asking.result(60)
    config = ProducerConfig(send=SendConfig(retry_times=1, retry_delay_ms=1))
    with pytest.raises(RouteError, match="no name server answers"):
        BlockSender(address, config, "p", "java").queues("orders")


@pytest.mark.parametrize("extra", [{}, {"tags": ["a", "b"]}])
@pytest.mark.parametrize("queue_type", ["BatchCQ", "SimpleCQ", None])
def test_the_sink_sends_records_to_batch_topics_only_and_only_rows_without_tags(
    broker, admin, monkeypatch, extra, queue_type
):
    admin.create_topic("orders", 1)
    outer: list[str] = []
    handlers = dict(server.HANDLERS)

    def configured(context, connection, request):
        if queue_type is None:  # as RocketMQ 4
            raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        body = json_text.dumps({"topicName": "orders", "attributes": {"queue.type": queue_type}})
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    def send(context, connection, request):
        outer.append(request.ext.get("i", ""))
        request.ext["i"] = ""  # the embedded broker stores message by message
        handlers[RequestCode.SEND_BATCH_MESSAGE](context, connection, request)

    monkeypatch.setitem(server.HANDLERS, RequestCode.GET_TOPIC_CONFIG, configured)
    monkeypatch.setitem(server.HANDLERS, RequestCode.SEND_BATCH_MESSAGE, send)
    given = {"name_servers": broker.name_servers, "topic": "orders"}
    batch = pa.RecordBatch.from_pydict({"sharding_key": ["a", "b"], "body": [b"1", b"2"]} | extra)
    columns = batch.schema.names
    sink = SinkOptions.of(given, dict.fromkeys(columns))
    sender = block_sender(sink.name_servers, sink.config, sink.group, sink.selector)
    encoder = RowEncoder(sink, columns, sender.queues, ("query", 0), 0)
    for _ in range(2):
        with sender.stream(is_bulk=encoder.is_bulk) as stream:
            stream.send(encoder.encode(batch))
    if queue_type == "BatchCQ" and not extra:
        ids = [decode(text)["UNIQ_KEY"] for text in outer]
        assert len(set(ids)) == 2
    else:
        assert outer == ["", ""]
    assert admin.topic("orders").messages == 4


def test_a_batch_topic_is_refused_where_brokers_have_none(broker, admin):
    with pytest.raises(StateError, match=r"created, but as other topics are.*since 5\.0"):
        admin.create_topic("orders", 2, stores_batches=True)
    assert len(admin.topic("orders").queues) == 2


@GROUPS
def test_a_running_query_fails_when_its_topic_was_deleted(broker, admin, producer, run, group):
    admin.create_topic("orders", 2)
    fill(producer)
    driver = run(**group)
    _, end = first_batch(driver)
    admin.delete_topic("orders")
    error = failure_of(driver, end)
    assert isinstance(error, DataLoss) or group  # of an ordered one its locks are gone, too
    if not group:
        assert "no name server has topic orders any more: it was deleted" in str(error)
        assert "set fail_on_data_loss=false to continue without" in str(error)


def test_without_fail_on_data_loss_a_query_goes_on_with_its_other_topics(
    admin, producer, run, caplog
):
    admin.create_topic("orders", 2)
    admin.create_topic("bills", 2)
    fill(producer)
    driver = run(topic="orders,bills", fail_on_data_loss="false")
    _, end = first_batch(driver)
    admin.delete_topic("orders")
    told = "no name server has topic orders any more"
    eventually(lambda: driver.next_end(end, None) is None and told in caplog.text, told)
    bill = MessageQueue("bills", "b", 1)
    producer.send_batch([Message("bills", b"1")], queue=bill)
    found: list[StreamOffset] = []
    eventually(lambda: found.append(driver.next_end(end, None)) or found[-1], "the other topic's")
    assert found[-1].queues[bill] == 1


def test_a_query_that_starts_again_without_its_topic_says_so(broker, admin, producer, run, session):
    admin.create_topic("orders", 2)
    fill(producer)
    first = run()
    start, end = first_batch(first)
    first.close()
    admin.delete_topic("orders")
    with pytest.raises(RouteError, match=NO_TOPIC):
        run().next_end(end, None)
    with pytest.raises(RouteError, match=NO_TOPIC):
        run().begin_batch(start, end)
    with pytest.raises(
        LockRefused, match=f"Nothing holds them that is known: {NO_TOPIC}"
    ) as caught:
        run(group="g", lock_wait_ms="300").begin_batch(start, end)
    assert "stop the other query" not in str(caught.value)


def test_a_task_says_whether_its_topic_was_deleted_or_closed(
    broker, admin, producer, options, session
):
    wanted = [QueueRange("orders", "b", 0, 0, 5)]
    with pytest.raises(RouteError, match=NO_TOPIC):
        list(read_ranges(session, options(), wanted))
    permit(session, broker, 6)
    fill(producer)
    permit(session, broker, 2)
    with pytest.raises(BrokerError, match="closed for reads"):
        list(read_ranges(session, options(), wanted))


def test_a_batch_that_was_begun_goes_on_when_its_topic_is_open_again(
    broker, producer, options, session, run, caplog
):
    permit(session, broker, 6)
    fill(producer)
    driver = run()
    start, end = first_batch(driver)
    driver.close()
    permit(session, broker, 2)
    with pytest.raises(RouteError, match=CLOSED):
        run(read_timeout_ms="60000").begin_batch(start, end)
    wanted = [QueueRange("orders", "b", 0, 0, 5)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            lambda: list(read_ranges(session, options(read_timeout_ms="60000"), wanted))
        )
        eventually(lambda: "pull failed" in caplog.text, "the task waits")
        permit(session, broker, 6)
        assert sum(batch.num_rows for batch in reading.result()) == 5


@GROUPS
def test_a_query_whose_broker_is_away_waits_for_it(tmp_path: Path, group):
    path, config = tmp_path / "away.db", BrokerConfig(broker_name="b")
    broker = EmbeddedBroker(path, config=config)
    broker.start()
    port = broker.port
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=2) as producer:
        fill(producer)
        given = {"name_servers": broker.name_servers, "topic": "orders"} | group
        driver = StreamDriver(SourceOptions.of(given))
        try:
            _, end = first_batch(driver)
            driver.next_end(end, None)
            broker.close()
            assert driver.next_end(end, None) is None
            broker = EmbeddedBroker(path, port=port, config=config)
            broker.start()
            fill(producer)
            found: list[StreamOffset] = []
            eventually(lambda: found.append(driver.next_end(end, None)) or found[-1], "messages")
        finally:
            driver.close()
            broker.close()
