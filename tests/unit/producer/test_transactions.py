"""Requests and answers of a transaction producer, frame by frame
(docs/internals/protocol.md#sending)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from itertools import starmap
from typing import Any

import pytest
from remoting.wire_server import Line, WireServer, run, until

from ordermq import Message, TransactionProducer, TransactionState, json_text
from ordermq.clock import ManualClock
from ordermq.core import RecordWriter
from ordermq.errors import ConfigError, KeyFailed, TransactionConflict
from ordermq.model.message import MessageView
from ordermq.model.properties import decode, encode
from ordermq.model.stored_message import host_bytes
from ordermq.producer import transactions
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import ONEWAY_FLAG, Command

HALF_OFFSET, PHYSICAL = 7, 4_096
COMMIT, ROLLBACK, UNKNOWN = TransactionState
FLAGS = {COMMIT: "8", ROLLBACK: "12", UNKNOWN: "0"}


class Broker:
    """Name server and broker of one topic with one queue; keeps what it is told.

    Args:
        sent: the answer's code of a send.
        ended: the answer's code of a commit that wants one.
    Attributes:
        found: the records that answer a search by an id; None: it is refused.
    """

    def __init__(self, sent: int = 0, ended: int = 0) -> None:
        self.server = WireServer(self._handle)
        self.found: bytes | None = b""
        self.sent, self.ended = sent, ended
        self.loop: asyncio.AbstractEventLoop | None = None  # the server's

    def soon(self, call: Callable[..., object], *given: object) -> None:
        """Call it on the server's loop, from another thread."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(call, *given)

    def of(self, code: int) -> list[Command]:
        return [request for request in self.server.requests if request.code == code]

    def _handle(self, line: Line, request: Command) -> None:
        if request.is_response or request.is_oneway:
            return
        ext, body, code = {}, b"", 0
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            brokers = (BrokerData("b", {0: self.server.address}),)
            body = TopicRoute(brokers, (QueueData("b", 1, 1),)).to_body()
        elif request.code == RequestCode.SEND_MESSAGE_V2:
            place = f"7F000001{0:08X}{PHYSICAL:016X}"
            ext = {"msgId": place, "queueId": "0", "queueOffset": str(HALF_OFFSET)}
            code = self.sent
        elif request.code == RequestCode.END_TRANSACTION:
            code = self.ended
        elif request.code == RequestCode.QUERY_MESSAGE:
            code, body = (16, b"") if self.found is None else (0 if self.found else 22, self.found)
        line.send(request.reply(code, ext, body, "no" if code == 1 else None))


def at_broker(
    work: Callable[[TransactionProducer, Broker], Any],
    broker: Broker | None = None,
    **settings: Any,
) -> None:
    """Run `work` on a thread, with a producer and its broker."""

    async def serve() -> None:
        found = broker or Broker()
        found.loop = asyncio.get_running_loop()
        async with found.server:
            settings.setdefault("check", lambda message: UNKNOWN)
            producer = TransactionProducer("pg", name_servers=found.server.address, **settings)

            def all_of_it() -> None:
                with producer:
                    work(producer, found)

            await asyncio.to_thread(all_of_it)

    run(serve())


def message(**more: Any) -> Message:
    return Message("T", b"paid", **more)


def on_loop(broker: Broker, condition: Callable[[], object]) -> None:
    """Wait on the caller's thread for something of the server's loop."""
    done = threading.Event()
    while not condition():
        done.wait(0.001)


def test_a_half_message_says_that_it_is_one_and_whose() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        receipt = producer.send_in_transaction(message(), execute=lambda *_: COMMIT)
        (sent,) = broker.of(RequestCode.SEND_MESSAGE_V2)
        properties = decode(sent.ext["i"])
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "pg")
        assert int(sent.ext["f"]) & 0xC == 0x4
        assert properties["UNIQ_KEY"] == receipt.transaction_id == receipt.message_id
        assert producer.send(message()).message_id
        plain = broker.of(RequestCode.SEND_MESSAGE_V2)[1]
        assert "TRAN_MSG" not in decode(plain.ext["i"])
        assert plain.ext["f"] == "0"

    at_broker(work)


def test_the_broker_knows_the_producer_group_before_the_first_half_message() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        producer.send_in_transaction(message(), execute=lambda *_: COMMIT)
        codes = [request.code for request in broker.server.requests]
        beat = codes.index(RequestCode.HEART_BEAT)
        assert beat < codes.index(RequestCode.SEND_MESSAGE_V2)
        body = json_text.loads(broker.server.requests[beat].body)
        assert body["producerDataSet"] == [{"groupName": "pg"}]

    at_broker(work)


def test_the_brokers_of_the_topics_given_can_ask_before_any_send() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        assert len(broker.of(RequestCode.HEART_BEAT)) == 1

    at_broker(work, topics=["T"])


@pytest.mark.parametrize("state", list(TransactionState))
def test_the_end_names_the_half_message_and_asks_for_no_answer(
    state: TransactionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is: the end of what was executed slowly is awaited.
    monkeypatch.setattr(transactions, "_SLOW_EXECUTE_MS", 1 << 40)

    def work(producer: TransactionProducer, broker: Broker) -> None:
        receipt = producer.send_in_transaction(message(), execute=lambda *_: state)
        assert receipt.state is state
        on_loop(broker, lambda: bool(broker.of(RequestCode.END_TRANSACTION)))
        (end,) = broker.of(RequestCode.END_TRANSACTION)
        assert end.is_oneway
        assert end.ext == {
            "producerGroup": "pg", "topic": "T", "tranStateTableOffset": str(HALF_OFFSET),
            "commitLogOffset": str(PHYSICAL), "commitOrRollback": FLAGS[state],
            "fromTransactionCheck": "false", "msgId": receipt.message_id,
            "transactionId": receipt.message_id, "bname": "b",
        }  # fmt: skip

    at_broker(work)


def test_the_local_half_sees_the_message_its_argument_and_the_transactions_id() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        mine = message()
        seen: list[tuple[Any, ...]] = []

        def execute(given: Message, argument: object) -> TransactionState:
            seen.append((given, argument, given.transaction_id))
            return COMMIT

        receipt = producer.send_in_transaction(mine, ["argument"], execute=execute)
        assert seen == [(mine, ["argument"], receipt.transaction_id)]
        assert seen[0][0] is mine

    at_broker(work)


def test_a_local_half_that_raises_is_unknown_and_the_broker_hears_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def execute(given: Message, argument: object) -> TransactionState:
        raise ValueError("no money")

    def work(producer: TransactionProducer, broker: Broker) -> None:
        assert producer.send_in_transaction(message(), execute=execute).state is UNKNOWN
        on_loop(broker, lambda: bool(broker.of(RequestCode.END_TRANSACTION)))
        (end,) = broker.of(RequestCode.END_TRANSACTION)
        assert end.ext["commitOrRollback"] == "0"
        assert "no money" in (end.remark or "")

    at_broker(work)
    assert "execute failed" in caplog.text


@pytest.mark.parametrize("answer", [None, "maybe", True])
def test_an_answer_that_is_no_state_is_unknown(answer: Any) -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        receipt = producer.send_in_transaction(message(), execute=lambda *_: answer)
        assert receipt.state is UNKNOWN

    at_broker(work)


def test_a_half_message_stored_less_safely_is_rolled_back_and_nothing_executed() -> None:
    executed: list[object] = []

    def work(producer: TransactionProducer, broker: Broker) -> None:
        receipt = producer.send_in_transaction(message(), execute=lambda *_: executed.append(1))
        assert (receipt.state, receipt.status) == (ROLLBACK, "FLUSH_DISK_TIMEOUT")
        on_loop(broker, lambda: bool(broker.of(RequestCode.END_TRANSACTION)))
        assert broker.of(RequestCode.END_TRANSACTION)[0].ext["commitOrRollback"] == "12"

    at_broker(work, Broker(sent=10))
    assert executed == []


def test_a_commit_of_a_sharding_key_is_awaited_and_if_refused_fails_the_key() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        producer.send_in_transaction(message(), execute=lambda *_: COMMIT, sharding_key="k")
        assert not broker.of(RequestCode.END_TRANSACTION)[0].is_oneway
        broker.ended = 1
        producer.send_in_transaction(message(), execute=lambda *_: COMMIT, sharding_key="k")
        with pytest.raises(KeyFailed):
            producer.send_in_transaction(message(), execute=lambda *_: COMMIT, sharding_key="k")
        with pytest.raises(KeyFailed):
            producer.send(message(), sharding_key="k")
        broker.ended = 0
        assert producer.resolve("T", "k")
        producer.send_in_transaction(message(), execute=lambda *_: COMMIT, sharding_key="k")

    at_broker(work)


def test_a_delayed_message_cannot_be_half_of_a_transaction() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        with pytest.raises(ConfigError, match="delayed"):
            producer.send_in_transaction(message(delay_level=1), execute=lambda *_: COMMIT)
        assert broker.of(RequestCode.SEND_MESSAGE_V2) == []

    at_broker(work)


def test_without_anything_to_execute_nothing_is_sent() -> None:
    def work(producer: TransactionProducer, broker: Broker) -> None:
        with pytest.raises(ConfigError, match="execute"):
            producer.send_in_transaction(message())
        assert broker.of(RequestCode.SEND_MESSAGE_V2) == []

    at_broker(work)


def test_a_producer_that_cannot_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="check"):
        TransactionProducer("pg", name_servers="127.0.0.1:1", execute=lambda *_: COMMIT)


# -- the broker asks -----------------------------------------------------------------------


def record(topic: str, message_id: str, born_ms: int = 1, queue_id: int = 3) -> bytes:
    """A stored message of a transaction."""
    writer = RecordWriter(topic, queue_id, host_bytes("10.0.0.1", 1), host_bytes("10.0.0.2", 2))
    properties = encode({"UNIQ_KEY": message_id, "PGROUP": "pg", "TRAN_MSG": "true", "KEYS": "o-1"})
    block = writer.write(
        b"x", properties.encode(), flag=0, sys_flag=0, born_ms=born_ms, stored_ms=2
    )
    return bytes(block.rows(HALF_OFFSET, PHYSICAL)[0][2])


def question(body: bytes | None = None, message_id: str = "ID", **more: str) -> Command:
    """As RocketMQ's broker asks: the record names the real topic, the header that of halves."""
    ext = {
        "tranStateTableOffset": str(HALF_OFFSET), "commitLogOffset": str(PHYSICAL),
        "msgId": "ID", "transactionId": "ID", "offsetMsgId": "00", "bname": "b",
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
    }  # fmt: skip
    asked = Command.request(
        RequestCode.CHECK_TRANSACTION_STATE,
        ext | more,
        record("T", message_id) if body is None else body,
    )
    asked.flag = ONEWAY_FLAG
    return asked


@contextlib.asynccontextmanager
async def answering(
    broker: Broker, check: Callable[[MessageView], Any], **settings: Any
) -> AsyncIterator[TransactionProducer]:
    """A producer that the broker may ask."""
    async with broker.server:
        producer = TransactionProducer(
            "pg", name_servers=broker.server.address, check=check, topics=["T"], **settings
        )
        await asyncio.to_thread(producer.start)
        yield producer
        await asyncio.to_thread(producer.close)


def asked(
    check: Callable[[MessageView], Any], *questions: Command, ends: int = 1, **settings: Any
) -> list[Command]:
    """The answers of a producer to a broker's questions."""

    async def serve() -> list[Command]:
        broker = Broker()
        async with answering(broker, check, **settings):
            for each in questions:
                broker.server.lines[-1].send(each)
            await until(lambda: len(broker.of(RequestCode.END_TRANSACTION)) == ends)
        return broker.of(RequestCode.END_TRANSACTION)

    return run(serve())


@pytest.mark.parametrize("state", list(TransactionState))
def test_a_broker_that_asks_is_told_what_the_check_says(state: TransactionState) -> None:
    seen: list[tuple[Any, ...]] = []

    def check(given: MessageView) -> TransactionState:
        seen.append((given.topic, given.queue_id, bytes(given.body), given.message_id, given.keys))
        return state

    (end,) = asked(check, question())
    assert seen == [("T", 3, b"x", "ID", ["o-1"])]
    assert end.is_oneway is (state is not COMMIT)
    assert end.ext == {
        "producerGroup": "pg", "topic": "T", "bname": "b",
        "tranStateTableOffset": str(HALF_OFFSET), "commitLogOffset": str(PHYSICAL),
        "commitOrRollback": FLAGS[state], "fromTransactionCheck": "true",
        "msgId": "ID", "transactionId": "ID",
    }  # fmt: skip


def test_a_copy_of_a_half_message_that_a_check_has_committed_is_rolled_back() -> None:
    """RocketMQ asks about it until it has noted the end, up to 3 s late."""
    checked: list[str] = []

    def check(given: MessageView) -> TransactionState:
        checked.append(given.message_id)
        return COMMIT

    async def serve() -> list[str]:
        broker = Broker()
        async with answering(broker, check) as producer:
            for count in (1, 2, 3):
                broker.server.lines[-1].send(question(tranStateTableOffset=str(count)))

                def is_told(count: int = count) -> bool:
                    return len(broker.of(RequestCode.END_TRANSACTION)) == count

                await until(is_told)
                # The answer has been read when the next request is answered.
                await asyncio.to_thread(producer.send, message())
        return [end.ext["commitOrRollback"] for end in broker.of(RequestCode.END_TRANSACTION)]

    assert run(serve()) == ["8", "12", "12"]
    assert checked == ["ID"]


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([("T", "ID")], ROLLBACK),
        ([("T", "OTHER"), ("T", "ID")], ROLLBACK),
        ([("T", "OTHER")], COMMIT),  # of the same hash
        ([("T", "ID", 5)], COMMIT),  # the same object, sent before in another transaction
        ([("RMQ_SYS_TRANS_HALF_TOPIC", "ID")], COMMIT),
        ([], COMMIT),
        (None, COMMIT),  # this account may only send
    ],
)
def test_a_copy_of_what_is_in_the_topic_already_is_rolled_back(
    found: list[tuple[Any, ...]] | None, answer: TransactionState
) -> None:
    """Its commit crossed the question, or it was another producer's."""

    async def serve() -> str:
        broker = Broker()
        broker.found = None if found is None else b"".join(starmap(record, found))
        async with answering(broker, lambda given: COMMIT):
            broker.server.lines[-1].send(question())
            await until(lambda: broker.of(RequestCode.END_TRANSACTION) != [])
        (search,) = broker.of(RequestCode.QUERY_MESSAGE)
        assert (search.ext["topic"], search.ext["key"]) == ("T", "ID")
        (end,) = broker.of(RequestCode.END_TRANSACTION)
        return end.ext["commitOrRollback"]

    assert run(serve()) == FLAGS[answer]


def test_a_question_that_crosses_the_commit_is_answered_when_the_broker_has_worked_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks before it reads the one-way end, and stores the message a moment later."""

    class Watched(ManualClock):
        waits = False

        async def sleep_ms(self, delay_ms: int) -> None:
            self.waits = self.waits or delay_ms == pause_ms
            await super().sleep_ms(delay_ms)

    clock, pause_ms = Watched(), 987
    monkeypatch.setattr(transactions, "_CROSSING_MS", pause_ms)

    def work(producer: TransactionProducer, broker: Broker) -> None:
        sent = producer.send_in_transaction(message(), execute=lambda *_: COMMIT)
        broker.soon(broker.server.lines[-1].send, question(message_id=sent.message_id))
        on_loop(broker, lambda: clock.waits)
        assert broker.of(RequestCode.QUERY_MESSAGE) == []
        broker.found = record("T", sent.message_id)
        # Once more each time: what waits was noted before it waited.
        on_loop(broker, lambda: clock.advance(pause_ms) or broker.of(RequestCode.QUERY_MESSAGE))
        on_loop(broker, lambda: len(broker.of(RequestCode.END_TRANSACTION)) == 2)
        ends = broker.of(RequestCode.END_TRANSACTION)
        assert [end.ext["commitOrRollback"] for end in ends] == [FLAGS[COMMIT], FLAGS[ROLLBACK]]

    at_broker(work, clock=clock)


@pytest.mark.parametrize("through", ["send_in_transaction", "end_transaction"])
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_what_the_check_of_another_producer_committed_is_not_ended_again(
    state: TransactionState, through: str
) -> None:
    """A broker asks any producer of the group, and forgets the half message that this one has."""
    clock = ManualClock()

    def work(producer: TransactionProducer, broker: Broker) -> None:
        def execute(given: Message, _: object) -> TransactionState:
            assert given.transaction_id is not None
            if through == "send_in_transaction":
                commit_elsewhere(given.transaction_id)
                return state
            return UNKNOWN

        def commit_elsewhere(transaction_id: str) -> None:
            broker.found = record("T", transaction_id, queue_id=0)
            clock.advance(1_000)

        def end_it() -> None:
            mine = message()
            receipt = producer.send_in_transaction(mine, execute=execute)
            if through == "end_transaction":
                commit_elsewhere(receipt.message_id)
                producer.end_transaction(mine, receipt, state)

        if state is COMMIT:
            end_it()
        else:
            with pytest.raises(TransactionConflict, match="another producer's check committed"):
                end_it()
        ends = [each.ext["commitOrRollback"] for each in broker.of(RequestCode.END_TRANSACTION)]
        assert set(ends) <= {FLAGS[UNKNOWN]}

    at_broker(work, clock=clock)


def test_a_check_of_what_is_being_committed_waits_for_the_next_one() -> None:
    class Slow(Broker):
        held: tuple[Line, Command] | None = None

        def _handle(self, line: Line, request: Command) -> None:
            if request.code == RequestCode.END_TRANSACTION and self.held is None:
                self.held = line, request
            else:
                super()._handle(line, request)

    checks: list[str] = []

    def check(given: MessageView) -> TransactionState:
        checks.append(given.message_id)
        return COMMIT

    async def serve() -> list[tuple[str, str]]:
        broker = Slow()
        settings = {"send_timeout_ms": 60_000, "check_thread_count": 2}
        async with answering(broker, check, **settings) as producer:
            ask = broker.server.lines[-1].send
            ask(question())
            await until(lambda: broker.held is not None)
            ask(question(tranStateTableOffset="8"))
            # One after it, about another transaction, has been answered.
            await until(lambda: len(checks) == 2)
            ask(question(message_id="OTHER", transactionId="OTHER"))
            await until(lambda: len(broker.of(RequestCode.END_TRANSACTION)) == 2)
            assert broker.held is not None
            line, held = broker.held
            line.send(held.reply(0))
            await asyncio.to_thread(producer.send, message())
            ask(question(tranStateTableOffset="9"))
            await until(lambda: len(broker.of(RequestCode.END_TRANSACTION)) == 3)
        ends = broker.of(RequestCode.END_TRANSACTION)
        return [(end.ext["msgId"], end.ext["commitOrRollback"]) for end in ends]

    assert run(serve()) == [("ID", "8"), ("OTHER", "8"), ("ID", "12")]


def place_of(end: Command) -> tuple[int, int]:
    return int(end.ext["tranStateTableOffset"]), int(end.ext["commitLogOffset"])


@pytest.mark.parametrize("when", ["while it is executed", "before end_transaction"])
def test_an_end_names_the_half_message_that_the_broker_asked_about_last(when: str) -> None:
    """RocketMQ stores a half message anew before it asks about it, and forgets the former one."""

    def work(producer: TransactionProducer, broker: Broker) -> None:
        def ask(message_id: str) -> None:
            for number, (half, physical) in enumerate(((21, 100), (22, 200)), start=before + 1):
                asked = question(
                    message_id=message_id,
                    tranStateTableOffset=str(half),
                    commitLogOffset=str(physical),
                )
                broker.soon(broker.server.lines[-1].send, asked)
                wait_for_ends(number)

        def ends() -> list[Command]:
            return broker.of(RequestCode.END_TRANSACTION)

        def wait_for_ends(count: int) -> None:
            on_loop(broker, lambda: len(ends()) == count)

        before = 0
        mine = message()
        if when == "while it is executed":

            def execute(given: Message, _: object) -> TransactionState:
                assert given.transaction_id is not None
                ask(given.transaction_id)
                return COMMIT

            producer.send_in_transaction(mine, execute=execute)
        else:
            receipt = producer.send_in_transaction(mine, execute=lambda *_: UNKNOWN)
            wait_for_ends(1)
            before = 1
            ask(receipt.message_id)
            producer.end_transaction(mine, receipt, COMMIT)
        wait_for_ends(before + 3)
        assert [end.ext["commitOrRollback"] for end in ends()[-3:]] == ["0", "0", "8"]
        assert [place_of(end) for end in ends()[-3:]] == [(21, 100), (22, 200), (22, 200)]

    at_broker(work)


def test_a_copy_of_what_a_broker_has_confirmed_is_rolled_back_while_its_connection_stands() -> None:
    """A broker of RocketMQ 5 notes ends up to 3 s late, and asks about what has ended meanwhile."""

    def work(producer: TransactionProducer, broker: Broker) -> None:
        def answer_to_a_check(message_id: str) -> str:
            before = len(broker.of(RequestCode.END_TRANSACTION))
            broker.soon(broker.server.lines[-1].send, question(message_id=message_id))
            on_loop(broker, lambda: len(broker.of(RequestCode.END_TRANSACTION)) > before)
            return broker.of(RequestCode.END_TRANSACTION)[-1].ext["commitOrRollback"]

        def committed() -> str:
            return producer.send_in_transaction(
                message(), execute=lambda *_: COMMIT, sharding_key="k"
            ).message_id

        confirmed = committed()
        assert answer_to_a_check(confirmed) == FLAGS[ROLLBACK]
        assert answer_to_a_check(confirmed) == FLAGS[ROLLBACK]
        # A broker that has died since may have lost the message.
        beats = len(broker.of(RequestCode.HEART_BEAT))
        broker.soon(broker.server.lines[-1].cut)
        on_loop(broker, lambda: len(broker.of(RequestCode.HEART_BEAT)) > beats)
        assert answer_to_a_check(confirmed) == FLAGS[COMMIT]
        broker.ended = 1
        assert answer_to_a_check(committed()) == FLAGS[COMMIT]  # it was refused

    at_broker(work)


def test_a_broker_that_does_not_take_a_known_state_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an account whose permission was withdrawn: the one-way end is refused unheard."""
    monkeypatch.setattr(transactions, "_SLOW_EXECUTE_MS", 1 << 40)

    def work(producer: TransactionProducer, broker: Broker) -> None:
        def wait_for_ends(count: int) -> None:
            on_loop(broker, lambda: len(broker.of(RequestCode.END_TRANSACTION)) == count)

        broker.ended = 1
        sent = producer.send_in_transaction(message(), execute=lambda *_: COMMIT)
        for number in (2, 3):
            broker.soon(broker.server.lines[-1].send, question(message_id=sent.message_id))
            wait_for_ends(number)
        first, *answers = broker.of(RequestCode.END_TRANSACTION)
        assert first.is_oneway
        assert [answer.ext["commitOrRollback"] for answer in answers] == [FLAGS[COMMIT]] * 2
        assert not any(answer.is_oneway for answer in answers)

    at_broker(work)
    assert caplog.text.count("end of a transaction failed: broker did not end the") == 1


def test_a_check_that_raises_is_unknown_and_the_broker_hears_why() -> None:
    def check(given: MessageView) -> TransactionState:
        raise LookupError("no such order")

    (end,) = asked(check, question())
    assert end.ext["commitOrRollback"] == "0"
    assert "no such order" in (end.remark or "")


def test_a_question_without_a_message_is_logged_and_the_next_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = asked(lambda _: COMMIT, question(b"junk"), question())
    assert len(ends) == 1
    assert "message cannot be decoded" in caplog.text


def test_questions_beyond_those_held_are_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = threading.Event()

    class Dropped(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "checks are waiting" in record.getMessage():
                gate.set()

    handler = Dropped()
    logging.getLogger("ordermq.producer").addHandler(handler)
    try:
        ends = asked(
            lambda _: COMMIT if gate.wait(10) else UNKNOWN, question(), question(), question(),
            ends=2, check_request_hold_max=2,
        )  # fmt: skip
    finally:
        logging.getLogger("ordermq.producer").removeHandler(handler)
    assert [end.ext["commitOrRollback"] for end in ends] == ["8", "12"]  # of one transaction


def test_refused_questions_are_told_once_until_there_is_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = TransactionProducer(
        "pg", name_servers="127.0.0.1:9", check=lambda _: COMMIT, check_request_hold_max=4
    )
    for lines in (1, 2):
        producer._checking.update(Future() for _ in range(4))
        for _ in range(5):
            reply = producer._on_request("127.0.0.1:1", question())
            assert reply is not None
            assert reply.code == ResponseCode.SYSTEM_BUSY
        assert caplog.text.count("check refused, 4 checks are waiting") == lines
        producer._checking.clear()
        producer._on_request("127.0.0.1:1", question(b"junk"))


def test_after_a_broken_connection_the_broker_hears_of_the_producer_again() -> None:
    async def serve() -> None:
        broker = Broker()
        async with broker.server:
            producer = TransactionProducer(
                "pg", name_servers=broker.server.address, check=lambda _: COMMIT, topics=["T"]
            )
            await asyncio.to_thread(producer.start)
            broker.server.lines[-1].cut()
            await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) == 2)
            broker.server.lines[-1].send(question())
            await until(lambda: len(broker.of(RequestCode.END_TRANSACTION)) == 1)
            await asyncio.to_thread(producer.close)

    run(serve())
