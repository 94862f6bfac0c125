"""Names of other clients' methods and values: errors that say what to write here."""

from __future__ import annotations

from typing import Any

import pytest

from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    ConsumeResult,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from ordermq.config.foreign_names import FOREIGN_METHODS, find_foreign_method
from ordermq.consumer.listener import AUTO_COMMIT, CONCURRENT, judge
from ordermq.errors import ConfigError

CLIENTS: dict[str, tuple[type, ...]] = {
    "consumer": (PushConsumer, LitePullConsumer, AsyncConsumer, PullConsumer),
    "producer": (Producer, AsyncProducer, TransactionProducer),
    "admin": (Admin,),
}


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (LitePullConsumer, "getone", "a method of Kafka's clients; here poll() or batches()"),
        (AsyncConsumer, "position", "here consumer.blocking of an AsyncConsumer"),
        (AsyncConsumer, "seekToTime", "blocking.offset_for_timestamp()"),
        (LitePullConsumer, "seek_to_time", "here offset_for_timestamp()"),
        (PushConsumer, "committed", "lag(), Admin.group()"),
        (AsyncConsumer, "getmany", "a method of Kafka's clients; here batches()"),
        (PushConsumer, "poll", "a LitePullConsumer or an AsyncConsumer is for polling"),
        (PushConsumer, "registerMessageListener", "here orderly() or concurrently()"),
        (PullConsumer, "commit", "here update_consume_offset()"),
        (LitePullConsumer, "shutdown", "here close()"),
        (PushConsumer, "set_name_server_address", "here name_servers= of the constructor"),
    ],
)
def test_a_consumer_names_what_another_clients_method_is_here(
    kind: Any, name: str, told: str
) -> None:
    consumer = kind("g", name_servers="127.0.0.1:1")
    with pytest.raises(AttributeError) as caught:
        getattr(consumer, name)
    assert str(caught.value).startswith(f"'{kind.__name__}' object has no attribute '{name}': ")
    assert told in str(caught.value)
    assert not hasattr(consumer, name)


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (AsyncProducer, "send_and_wait", "that is a method of aiokafka; here send()"),
        (Producer, "produce", "here send_nowait() or send()"),
        (AsyncProducer, "send_offsets_to_transaction", "TransactionProducer.send_in_transaction()"),
        (Producer, "begin_transaction", "TransactionProducer.send_in_transaction() binds a send"),
        (TransactionProducer, "sendMessageInTransaction", "here send_in_transaction()"),
        (Producer, "send_orderly", "here send(message, sharding_key=key)"),
    ],
)
def test_a_producer_names_what_another_clients_method_is_here(
    kind: Any, name: str, told: str
) -> None:
    arguments = {"check": lambda message: None} if kind is TransactionProducer else {}
    with pytest.raises(AttributeError) as caught:
        getattr(kind("p", name_servers="127.0.0.1:1", **arguments), name)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("list_topics", r"topics\(\)"),
        ("createTopics", r"create_topic\(\)"),
        ("describe_consumer_groups", r"group\(\)"),
        ("alter_consumer_group_offsets", r"reset\(\)"),
        ("delete_consumer_groups", "mqadmin deleteSubGroup"),
    ],
)
def test_an_admin_names_what_kafkas_is_here(name: str, told: str) -> None:
    with (
        Admin("127.0.0.1:1") as admin,
        pytest.raises(AttributeError, match=f"a method of Kafka's clients; here .*{told}"),
    ):
        getattr(admin, name)


def test_other_names_are_told_as_python_tells_them() -> None:
    consumer = PushConsumer("g", name_servers="127.0.0.1:1")
    with pytest.raises(AttributeError) as caught:
        consumer.pauze  # noqa: B018
    assert str(caught.value) == "'PushConsumer' object has no attribute 'pauze'"
    assert (caught.value.name, caught.value.obj) == ("pauze", consumer)  # Python's own proposal


def test_a_property_that_fails_tells_its_own_error() -> None:
    class Broken(Producer):
        @property
        def poll(self) -> object:
            return object().missing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'object' object has no attribute 'missing'"):
        Broken("p", name_servers="127.0.0.1:1").poll  # noqa: B018


def test_every_method_of_another_client_leads_to_something_that_is_there() -> None:
    for kind, methods in FOREIGN_METHODS.items():
        known = {name for client in CLIENTS[kind] for name in dir(client)}
        for name, found in methods.items():
            assert find_foreign_method(kind, name) is found
            assert [each for each in found.instead if each not in known] == [], name
            for client in CLIENTS[kind]:
                explained = found.explained(client)
                assert hasattr(client, name) or "; here " in explained, name


def test_a_send_with_a_callback_is_told_of_the_future() -> None:
    producer: Any = Producer("p", name_servers="127.0.0.1:1")
    with pytest.raises(TypeError, match=r"send_nowait\(\) returns a future"):
        producer.send(Message("orders", b"paid"), callback=print)


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (ConsumeResult, "CONSUME_SUCCESS", "here ConsumeResult.SUCCESS"),
        (ConsumeResult, "RECONSUME_LATER", "here ConsumeResult.SUSPEND"),
        (ConsumeResult, "SUSPEND_CURRENT_QUEUE_A_MOMENT", "here ConsumeResult.SUSPEND"),
        (ConsumeResult, "success", "write ConsumeResult.SUCCESS"),
        (SendStatus, "OK", "here SendStatus.SEND_OK"),
        (TransactionState, "COMMIT_MESSAGE", "here TransactionState.COMMIT"),
    ],
)
def test_a_value_of_another_client_names_the_one_here(kind: Any, name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'.*{told}"):
        getattr(kind, name)
    with pytest.raises(AttributeError, match=r"no attribute 'WRONG'$"):
        kind.WRONG  # noqa: B018


def test_the_text_of_a_result_is_refused_with_the_member_to_write() -> None:
    with pytest.raises(ConfigError, match=r"write ConsumeResult\.SUCCESS, not its text"):
        judge("SUCCESS", 1, AUTO_COMMIT)
    with pytest.raises(ConfigError, match=r"messages are done$"):
        judge(ConsumeResult.ROLLBACK, 1, CONCURRENT)
