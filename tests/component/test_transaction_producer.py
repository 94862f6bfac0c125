"""A transaction producer and a consumer on an embedded broker, with the real clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError, TransactionConflict
from tests.component.conftest import Seen, eventually

COMMIT, ROLLBACK, UNKNOWN = TransactionState


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(
        broker_name="b", durability="os", transaction_timeout_ms=50,
        transaction_check_interval_ms=50,
    )  # fmt: skip


class Books:
    """A local transaction log, in memory.

    Args:
        says: what `execute` says of an order; the truth is in `states`.
    """

    def __init__(self, says: Callable[[str], TransactionState | None]) -> None:
        self.says = says
        self.states: dict[str, TransactionState] = {}
        self.checked: list[str] = []

    def execute(self, message: Message, argument: Any) -> TransactionState | None:
        assert message.transaction_id is not None
        self.states[message.transaction_id] = argument
        return self.says(argument)

    def check(self, message: MessageView) -> TransactionState:
        self.checked.append(message.message_id)
        return self.states[message.message_id]


def orders(number: int) -> Message:
    return Message("orders", str(number).encode())


def test_consumers_get_what_was_committed_and_nothing_else(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    books = Books(lambda state: TransactionState(state))
    with (
        TransactionProducer("pg", books, name_servers=broker.name_servers) as producer,
        make_consumer(seen.take),
    ):
        for number in range(30):
            state = COMMIT if number % 3 else ROLLBACK
            assert producer.send_in_transaction(orders(number), state).state is state
        producer.send(orders(99))
        seen.wait_for_count(21)
    assert sorted(int(body) for *_, body in seen.deliveries) == [
        *(n for n in range(30) if n % 3), 99,
    ]  # fmt: skip
    eventually(lambda: broker.statistics.half_messages == 0, "no half waits")


def test_messages_of_a_key_come_in_the_order_their_transactions_were_committed(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    with (
        TransactionProducer(
            "pg", execute=lambda *_: COMMIT, check=lambda _: UNKNOWN,
            name_servers=broker.name_servers,
        ) as producer,
        make_consumer(seen.take),
    ):  # fmt: skip

        def send(key: int) -> None:
            for number in range(40):
                producer.send_in_transaction(orders(number), sharding_key=f"k{key}")

        threads = [threading.Thread(target=send, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.wait_for_count(160)
    for key in range(4):
        assert seen.bodies_of(f"k{key}") == [str(number).encode() for number in range(40)]


def test_a_transaction_left_open_is_checked_until_it_is_decided(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    books = Books(lambda _: UNKNOWN)
    with (
        TransactionProducer("pg", books, name_servers=broker.name_servers) as producer,
        make_consumer(seen.take),
    ):
        opened = producer.send_in_transaction(orders(1), UNKNOWN)
        dropped = producer.send_in_transaction(orders(2), ROLLBACK)
        assert opened.state is UNKNOWN
        eventually(lambda: books.checked.count(opened.transaction_id) > 2, "it is asked about")
        assert seen.deliveries == []
        books.states[opened.transaction_id] = COMMIT
        seen.wait_for_count(1)
        eventually(lambda: broker.statistics.half_messages == 0, "no half waits")
    assert [body for *_, body in seen.deliveries] == [b"1"]
    assert dropped.transaction_id in books.checked
    assert broker.statistics.transactions_rolled_back == 1


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_a_transaction_left_open_ends_as_its_producer_says_later(
    broker: EmbeddedBroker,
    make_consumer: Callable[..., PushConsumer],
    seen: Seen,
    state: TransactionState,
) -> None:
    books = Books(lambda _: UNKNOWN)
    with (
        TransactionProducer("pg", books, name_servers=broker.name_servers) as producer,
        make_consumer(seen.take),
    ):
        message = orders(1)
        opened = producer.send_in_transaction(message, UNKNOWN)
        eventually(lambda: books.checked.count(opened.transaction_id) > 1, "it is asked about")
        producer.end_transaction(message, opened, state)
        assert broker.statistics.half_messages == 0
        reason = "this producer committed it" if state is COMMIT else "rolled back"
        with pytest.raises(TransactionConflict, match=f"was to end with.*{reason}"):
            producer.end_transaction(message, opened, COMMIT if state is ROLLBACK else ROLLBACK)
        if state is COMMIT:
            seen.wait_for_count(1)
        with pytest.raises(ConfigError, match="COMMIT or ROLLBACK"):
            producer.end_transaction(message, opened, UNKNOWN)
    assert len(seen.deliveries) == (state is COMMIT)


def test_a_check_of_a_transaction_that_is_being_executed_decides_nothing(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    checks: list[str] = []

    def check(message: MessageView) -> TransactionState:
        checks.append(message.message_id)
        return ROLLBACK  # the row is not visible yet

    def execute(message: Message, argument: object) -> TransactionState:
        sent = broker.statistics.transactions_asked
        eventually(lambda: broker.statistics.transactions_asked > sent + 1, "it is asked twice")
        return COMMIT

    with (
        TransactionProducer("pg", execute=execute, check=check, name_servers=broker.name_servers)
        as producer,
        make_consumer(seen.take),
    ):  # fmt: skip
        assert producer.send_in_transaction(orders(1)).state is COMMIT
        seen.wait_for_count(1)
        eventually(lambda: broker.statistics.half_messages == 0, "no half waits")
    assert checks == []
    assert broker.statistics.transactions_rolled_back == 0


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_that_outlasts_the_last_check_is_told_to_its_caller(
    is_async: bool, key: str | None
) -> None:
    def execute(message: Message, argument: object) -> TransactionState:
        eventually(lambda: broker.statistics.transactions_discarded == 1, "it is given up")
        return COMMIT

    config = BrokerConfig(
        transaction_timeout_ms=50, transaction_check_interval_ms=50, transaction_check_max=2
    )
    with (
        EmbeddedBroker(config=config) as broker,
        TransactionProducer(
            "pg", execute=execute, check=lambda _: ROLLBACK, name_servers=broker.name_servers
        ) as producer,
        pytest.raises(TransactionConflict) as caught,
    ):
        if is_async:
            asyncio.run(producer.asend_in_transaction(orders(1), sharding_key=key))
        else:
            producer.send_in_transaction(orders(1), sharding_key=key)
    text = str(caught.value)
    assert "was to end with COMMIT, but the broker had ended it before" in text
    assert "it was given up after the last check, now in TRANS_CHECK_MAX_TIME_TOPIC" in text
    assert "compensate the local transaction or send its message anew" in text


@pytest.mark.parametrize("said", [COMMIT, ROLLBACK])
def test_a_check_of_another_producer_that_contradicts_execute_is_told_to_its_caller(
    broker: EmbeddedBroker, said: TransactionState
) -> None:
    statistics = broker.statistics

    def execute(message: Message, argument: object) -> TransactionState:
        ended = "transactions_committed" if said is COMMIT else "transactions_rolled_back"
        eventually(lambda: getattr(statistics, ended) == 1, "the other one has answered")
        assert isinstance(argument, TransactionState)
        return argument

    def begin(argument: TransactionState) -> TransactionState:
        with (
            TransactionProducer(
                "pg", execute=execute, check=lambda _: UNKNOWN, name_servers=broker.name_servers,
            ) as producer,
            TransactionProducer(
                "pg", check=lambda _: said, topics=["orders"], name_servers=broker.name_servers,
            ),
        ):  # fmt: skip
            return producer.send_in_transaction(orders(1), argument).state

    with Producer("first", name_servers=broker.name_servers) as first:
        first.send(orders(0))
    other = ROLLBACK if said is COMMIT else COMMIT
    with pytest.raises(TransactionConflict, match=f"was to end with {other.value}, but"):
        begin(other)


def test_a_check_of_another_producer_that_agrees_with_execute_is_no_conflict(
    broker: EmbeddedBroker,
) -> None:
    def execute(message: Message, argument: object) -> TransactionState:
        eventually(lambda: broker.statistics.transactions_committed == 1, "the other one answered")
        return COMMIT

    with Producer("first", name_servers=broker.name_servers) as first:
        first.send(orders(0))
    with (
        TransactionProducer(
            "pg", execute=execute, check=lambda _: UNKNOWN, name_servers=broker.name_servers
        ) as producer,
        TransactionProducer(
            "pg", check=lambda _: COMMIT, topics=["orders"], name_servers=broker.name_servers
        ),
    ):
        assert producer.send_in_transaction(orders(1)).state is COMMIT
    assert broker.statistics.transactions_committed == 1


def test_a_producer_begun_again_answers_for_the_one_that_died(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    books = Books(lambda _: UNKNOWN)
    first = TransactionProducer("pg", books, name_servers=broker.name_servers)
    first.start()
    receipt = first.send_in_transaction(orders(1), UNKNOWN)
    first.close()
    books.states[receipt.transaction_id] = COMMIT
    again = TransactionProducer("pg", books, topics=["orders"], name_servers=broker.name_servers)
    with again, make_consumer(seen.take):
        seen.wait_for_count(1)


def test_after_the_broker_came_back_transactions_go_on_where_they_stood(
    tmp_path: Path, broker_config: BrokerConfig
) -> None:
    books = Books(lambda _: UNKNOWN)
    path = tmp_path / "again.db"
    with EmbeddedBroker(path, config=broker_config) as broker:
        port = broker.port
        producer = TransactionProducer("pg", books, name_servers=broker.name_servers)
        producer.start()
        receipt = producer.send_in_transaction(orders(1), UNKNOWN)
    books.states[receipt.transaction_id] = COMMIT
    with EmbeddedBroker(path, config=broker_config, port=port) as broker:
        eventually(
            lambda: broker.statistics.transactions_committed == 1, "it is asked and committed"
        )
        producer.close()


def test_a_compressed_half_is_checked_and_delivered_as_it_was_sent(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    body = b"large " * 2_000
    checked: list[bytes] = []

    def check(message: MessageView) -> TransactionState:
        checked.append(bytes(message.body))
        return COMMIT

    with (
        TransactionProducer("pg", check=check, name_servers=broker.name_servers) as producer,
        make_consumer(seen.take),
    ):
        producer.send_in_transaction(Message("orders", body), execute=lambda *_: UNKNOWN)
        seen.wait_for_count(1)
    assert set(checked) == {body}  # a broker that is not answered in 50 ms asks again
    assert seen.deliveries[0][3] == body


def test_a_producer_with_a_running_check_closes_once_it_has_answered(
    broker: EmbeddedBroker,
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def check(message: MessageView) -> TransactionState:
        begun.set()
        assert gate.wait(20)
        return COMMIT

    producer = TransactionProducer("pg", check=check, name_servers=broker.name_servers)
    producer.start()
    producer.send_in_transaction(orders(1), execute=lambda *_: UNKNOWN)
    assert begun.wait(20)
    closing = threading.Thread(target=producer.close)
    closing.start()
    gate.set()
    closing.join(20)
    assert not closing.is_alive()
    eventually(lambda: broker.statistics.transactions_committed == 1, "its word arrived")


def test_async_transactions_end_as_their_local_halves_say(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    ran: list[tuple[str, int]] = []

    async def awaited(message: Message, argument: TransactionState) -> TransactionState:
        await asyncio.sleep(0)
        ran.append(("awaited", threading.get_ident()))
        return argument

    def plain(message: Message, argument: TransactionState) -> TransactionState:
        assert message.transaction_id
        ran.append(("plain", threading.get_ident()))
        return argument

    async def send(producer: TransactionProducer) -> list[TransactionState]:
        receipts = await asyncio.gather(
            *(
                producer.asend_in_transaction(
                    orders(number),
                    ROLLBACK if number % 3 == 0 else COMMIT,
                    execute=awaited if number % 2 else None,
                )
                for number in range(30)
            )
        )
        return [receipt.state for receipt in receipts]

    with (
        TransactionProducer(
            "pg", execute=plain, check=lambda _: UNKNOWN, name_servers=broker.name_servers
        ) as producer,
        make_consumer(seen.take),
    ):
        states = asyncio.run(send(producer))
        seen.wait_for_count(20)
    assert states == [ROLLBACK if number % 3 == 0 else COMMIT for number in range(30)]
    assert sorted(int(body) for *_, body in seen.deliveries) == [n for n in range(30) if n % 3]
    here = threading.get_ident()
    assert {(kind, thread == here) for kind, thread in ran} == {("awaited", True), ("plain", False)}


def test_async_transactions_of_a_key_that_are_awaited_come_in_order(
    broker: EmbeddedBroker, make_consumer: Callable[..., PushConsumer], seen: Seen
) -> None:
    async def commit(*_: Any) -> TransactionState:
        return COMMIT

    async def send(producer: TransactionProducer, key: int) -> None:
        for number in range(20):
            await producer.asend_in_transaction(
                orders(number), execute=commit, sharding_key=f"k{key}"
            )

    async def send_all(producer: TransactionProducer) -> None:
        await asyncio.gather(*(send(producer, key) for key in range(4)))

    with (
        TransactionProducer(
            "pg", check=lambda _: UNKNOWN, name_servers=broker.name_servers
        ) as producer,
        make_consumer(seen.take),
    ):
        asyncio.run(send_all(producer))
        seen.wait_for_count(80)
    for key in range(4):
        assert seen.bodies_of(f"k{key}") == [str(number).encode() for number in range(20)]


def test_what_raises_or_is_cancelled_in_an_async_transaction_is_asked_about(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    async def broken(*_: Any) -> TransactionState:
        raise ValueError("no books")

    async def endless(*_: Any) -> TransactionState:
        begun.set()
        await asyncio.Event().wait()
        return COMMIT

    async def send(producer: TransactionProducer) -> None:
        receipt = await producer.asend_in_transaction(orders(1), execute=broken)
        assert receipt.state is UNKNOWN
        left = asyncio.create_task(producer.asend_in_transaction(orders(2), execute=endless))
        await asyncio.to_thread(begun.wait, 20)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(ConfigError, match="nothing to execute"):
            await producer.asend_in_transaction(orders(3))
        with pytest.raises(ConfigError, match="cannot be delayed"):
            await producer.asend_in_transaction(
                Message("orders", b"4", delay_level=1), execute=broken
            )

    with TransactionProducer(
        "pg", check=lambda _: COMMIT, name_servers=broker.name_servers
    ) as producer:
        asyncio.run(send(producer))
        eventually(lambda: broker.statistics.transactions_committed == 2, "both are asked about")
    assert "no books" in caplog.text


def test_a_state_of_another_client_is_named_with_those_that_are_known(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    known: set[str] = set()

    def execute(message: Message, _: object) -> Any:
        assert message.transaction_id is not None
        known.add(message.transaction_id)
        return "COMMIT_MESSAGE"  # Java's

    def check(message: MessageView) -> TransactionState:
        return COMMIT if message.transaction_id in known else ROLLBACK

    with TransactionProducer(
        "pg", execute=execute, check=check, name_servers=broker.name_servers
    ) as producer:
        assert producer.send_in_transaction(orders(1)).state is UNKNOWN
        eventually(lambda: broker.statistics.transactions_committed == 1, "it is asked about")
    assert "'COMMIT_MESSAGE' is no state: return TransactionState.COMMIT, " in caplog.text


@pytest.mark.parametrize("says", [COMMIT, ROLLBACK, None, "raises"])
def test_a_local_transaction_that_goes_on_behind_its_cancelled_caller_is_not_asked_about(
    says: TransactionState | str | None,
) -> None:
    """A thread is not ended by a cancellation, and `check` would not find what it has not done."""
    begun, released = threading.Event(), threading.Event()
    checked: list[bool] = []

    def execute(message: Message, argument: Any) -> Any:
        begun.set()
        assert released.wait(20)
        if says == "raises":
            raise ValueError("a test's own failure")
        return says

    def check(message: MessageView) -> TransactionState:
        checked.append(released.is_set())
        return COMMIT

    async def send(producer: TransactionProducer) -> None:
        left = asyncio.create_task(producer.asend_in_transaction(orders(1), execute=execute))
        await asyncio.to_thread(begun.wait, 20)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        await asyncio.to_thread(eventually, lambda: asked() >= 2, "the broker asks meanwhile")
        released.set()

    def asked() -> int:
        return broker.statistics.transactions_asked

    config = BrokerConfig(
        transaction_timeout_ms=50, transaction_check_interval_ms=50, transaction_check_max=1_000
    )
    with (
        EmbeddedBroker(config=config) as broker,
        TransactionProducer("pg", check=check, name_servers=broker.name_servers) as producer,
    ):
        asyncio.run(send(producer))
        eventually(lambda: broker.statistics.half_messages == 0, "it has ended")
        commits = 0 if says is ROLLBACK else 1
        assert broker.statistics.transactions_committed == commits
        assert broker.statistics.transactions_rolled_back == 1 - commits
        eventually(lambda: not producer._executing, "nothing is left of it")
    assert False not in checked
    assert bool(checked) is (says in (None, "raises"))


def test_a_cancelled_call_whose_local_transaction_never_begins_is_asked_about() -> None:
    """All threads of the loop are taken."""
    released, checked = threading.Event(), threading.Event()

    def check(message: MessageView) -> TransactionState:
        checked.set()
        return ROLLBACK

    def execute(message: Message, argument: Any) -> TransactionState:
        pytest.fail("nobody waits for it")

    async def send(producer: TransactionProducer) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(1) as watching:
            loop.set_default_executor(threads)
            taken = loop.run_in_executor(None, released.wait, 20)
            left = asyncio.create_task(producer.asend_in_transaction(orders(1), execute=execute))
            await loop.run_in_executor(watching, eventually, is_stored, "the half is stored")
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            assert await loop.run_in_executor(watching, checked.wait, 20)
            released.set()
            await taken

    def is_stored() -> bool:
        return broker.statistics.half_messages == 1

    config = BrokerConfig(transaction_timeout_ms=50, transaction_check_interval_ms=50)
    with (
        EmbeddedBroker(config=config) as broker,
        TransactionProducer("pg", check=check, name_servers=broker.name_servers) as producer,
    ):
        asyncio.run(send(producer))
        eventually(lambda: broker.statistics.transactions_rolled_back == 1, "as `check` says")
