"""The transaction producer of 2.0.0: what its callbacks get, and what their answers do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.rocketmq import exceptions
from ordermq.rocketmq.client import (
    Message,
    ReceivedMessage,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from tests.component.conftest import eventually
from tests.component.rocketmq.conftest import message, stored


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(
        durability="os", transaction_timeout_ms=100, transaction_check_interval_ms=50
    )


class Local:
    """The local half: answers as told, keeps what it was called with."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.executed: list[tuple[bytes, bytes, str, object]] = []
        self.checked: list[tuple[bytes, str]] = []
        self.check_answer: Any = TransactionStatus.UNKNOWN

    def execute(self, got: ReceivedMessage, user_args: object) -> Any:
        self.executed.append((got.body, got.tags, got.id, user_args))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def check(self, got: ReceivedMessage) -> Any:
        self.checked.append((got.body, got.id))
        return self.check_answer


@pytest.fixture
def local() -> Local:
    return Local()


@pytest.fixture
def producer(broker: EmbeddedBroker, local: Local) -> Iterator[TransactionMQProducer]:
    producer = TransactionMQProducer("p", local.check, None, 3000)
    producer.set_name_server_address(broker.name_servers)
    producer.start()
    yield producer
    producer.shutdown()


def test_only_what_was_committed_is_received(
    broker: EmbeddedBroker, producer: TransactionMQProducer, local: Local
) -> None:
    local.answers = [TransactionStatus.COMMIT, TransactionStatus.ROLLBACK]
    tagged = message("kept")
    tagged.set_tags("t")
    kept = producer.send_message_in_transaction(tagged, local.execute, {"order": 1})
    gone = producer.send_message_in_transaction(message("gone"), local.execute)
    assert kept.status == gone.status == SendStatus.OK
    assert local.executed == [
        (b"kept", b"t", kept.msg_id, {"order": 1}),
        (b"gone", b"", gone.msg_id, None),
    ]
    eventually(lambda: [each.body for each in stored(broker)] == [b"kept"], "one is received")
    assert local.checked == []


@pytest.mark.parametrize("answer", [TransactionStatus.UNKNOWN, None, 9, RuntimeError("mine")])
def test_what_is_unknown_is_asked_about_until_it_is_known(
    broker: EmbeddedBroker, producer: TransactionMQProducer, local: Local, answer: object
) -> None:
    producer.send_sync(message("other"))
    local.answers = [answer]
    result = producer.send_message_in_transaction(message("late"), local.execute)
    eventually(lambda: len(local.checked) >= 2, "asked twice")
    assert set(local.checked) == {(b"late", result.msg_id)}
    assert [each.body for each in stored(broker)] == [b"other"]
    local.check_answer = TransactionStatus.COMMIT
    eventually(lambda: len(stored(broker)) == 2, "it is received")


def test_what_cannot_be_half_of_a_transaction_executes_nothing(
    producer: TransactionMQProducer, local: Local
) -> None:
    late = message()
    late.set_delay_time_level(3)
    for wrong in (late, Message("orders")):
        with pytest.raises(exceptions.ProducerSendSyncFailed):
            producer.send_message_in_transaction(wrong, local.execute)
    assert local.executed == []
