"""Names of other clients' methods and values: errors that say what to write here."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import ordermq
from ordermq import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    ConcurrentContext,
    ConsumeContext,
    ConsumerConfig,
    ConsumeResult,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageView,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    SendReceipt,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from ordermq.config import BrokerConfig
from ordermq.config.checks import meaning_of
from ordermq.config.foreign_names import FOREIGN_CLASSES, FOREIGN_METHODS, find_foreign_method
from ordermq.consumer.listener import AUTO_COMMIT, CONCURRENT, judge
from ordermq.errors import ConfigError
from ordermq.model.foreign_attributes import OF_CONTEXTS, OF_MESSAGES, OF_RECEIPTS, OF_VIEWS

ROOT = Path(__file__).resolve().parents[2]

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
        (PushConsumer, "setNamesrvAddr", "RocketMQ's Java client and rocketmq-client-python; here"),
        (PushConsumer, "setConsumeThreadMin", "a setter of RocketMQ's Java client; give the cons"),
        (PushConsumer, "setConsumeTimeout", "consume_timeout_ms= (Java's number is in minutes)"),
        (AsyncConsumer, "setMaxReconsumeTimes", "give max_reconsume_times= to the constructor"),
        (LitePullConsumer, "setNamespaceV2", "give namespace_v2= to the constructor"),
        (PullConsumer, "setInstanceName", "give instance_name= to the constructor"),
        (PushConsumer, "setUseTLS", "give the constructor tls="),
        (PushConsumer, "setVipChannelEnabled", "no such setting (one port serves all requests)"),
        (PushConsumer, "suspend", "here pause()"),
        (PushConsumer, "getConsumerGroup", ": write group"),
        (LitePullConsumer, "seekToBegin", ": write seek_to_begin"),
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
        (Producer, "sendOneway", ": write send_oneway"),
        (AsyncProducer, "recallMessage", "here recall()"),
        (Producer, "fetchPublishMessageQueues", "here queues()"),
        (Producer, "setSendMsgTimeout", "give the constructor send_timeout_ms="),
        (Producer, "setTransactionListener", "the constructor of a TransactionProducer"),
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
        ("delete_consumer_groups", r"delete_group\(\)"),
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


def test_a_setter_of_what_a_client_does_not_have_is_not_explained() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'setConsumeThreadMin'$"):
        PullConsumer("g", name_servers="127.0.0.1:1").setConsumeThreadMin  # noqa: B018


def test_a_client_that_is_not_constructed_yet_tells_what_it_lacks() -> None:
    consumer = PushConsumer.__new__(PushConsumer)
    for name in ("config", "setNamespace", "group"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(consumer, name)


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
    with pytest.raises(TypeError, match=r"send_nowait\(\) returns a future") as caught:
        producer.send(Message("orders", b"paid"), callback=print)
    assert "Kafka's clients and RocketMQ's Java client" in str(caught.value)


@pytest.mark.parametrize("given", [{"selector": max, "arg": "o-17"}, {"arg": "o-17"}])
def test_a_send_with_a_selector_is_told_of_the_producers(given: dict[str, Any]) -> None:
    producer: Any = Producer("p", name_servers="127.0.0.1:1")
    with pytest.raises(TypeError, match=r"here sharding_key= .* one selector, .* of Producer\)"):
        producer.send(Message("orders", b"paid"), **given)


@pytest.mark.parametrize(
    ("kind", "call", "told"),
    [
        (Producer, "send", r"write producer\.send_batch\(messages, "),
        (Producer, "send_oneway", r"write producer\.send_batch\(messages, "),
        (AsyncProducer, "send_nowait", r"write producer\.send_batch\(messages, "),
    ],
)
def test_a_send_of_a_list_is_told_of_the_batch(kind: Any, call: str, told: str) -> None:
    producer = kind("p", name_servers="127.0.0.1:1")
    with pytest.raises(TypeError, match=told):
        getattr(producer, call)([Message("orders", b"paid")])
    with pytest.raises(TypeError, match=rf"write producer\.{call}\("):
        getattr(producer, call)([])


@pytest.mark.parametrize(
    ("setting", "value", "meant"),
    [
        ("message_model", "BROADCASTING", "broadcasting"),
        ("message_model", "MessageModel.CLUSTERING", "clustering"),
        ("consume_mode", "POP", "pop"),
        ("consume_from_where", "CONSUME_FROM_FIRST_OFFSET", "first_offset"),
        ("allocation", "AVG", "avg"),
        ("allocation", "AllocateMessageQueueAveragelyByCircle", "avg_by_circle"),
        ("allocation", "consistenthash", "consistent_hash"),
        ("tls_verify", "NONE", "none"),
    ],
)
def test_a_value_in_another_spelling_is_told_in_ours(setting: str, value: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"expected one of .*; did you mean '{meant}'"):
        PushConsumer("g", name_servers="127.0.0.1:1", **{setting: value})  # type: ignore[arg-type]


def test_a_selector_of_java_is_told_by_its_name_here() -> None:
    with pytest.raises(ConfigError, match="did you mean 'java'"):
        Producer("p", name_servers="127.0.0.1:1", selector="SelectMessageQueueByHash")


def test_a_class_of_another_client_leads_to_one_that_is_here() -> None:
    for name, here in FOREIGN_CLASSES.items():
        assert hasattr(ordermq, here.split(",")[0]), name
        assert not hasattr(ordermq, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*; here ordermq.{here}"):
            getattr(ordermq, name)
    with pytest.raises(AttributeError, match=r"no attribute 'Nothing'$"):
        ordermq.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Message, OF_MESSAGES),
        (MessageView, OF_VIEWS),
        (SendReceipt, OF_RECEIPTS),
        (ConsumeContext, OF_CONTEXTS),
    ],
)
def test_attributes_of_other_clients_lead_to_something_that_is_there(
    kind: type, names: dict[str, str]
) -> None:
    takes = {*inspect.signature(Message).parameters}
    for name, here in names.items():
        first = re.split(r"\W", here)[0]
        assert hasattr(ConcurrentContext if kind is ConsumeContext else kind, first) or (
            kind is Message and first in takes
        ), name
        assert not hasattr(kind, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*; here {first}"):
            getattr(kind, name)


def test_attributes_of_other_clients_are_explained_and_not_listed() -> None:
    message: Any = Message("orders", b"paid", tags="a")
    with pytest.raises(AttributeError, match=r"^'Message' object .*; here properties=\{name: val"):
        message.put_user_property  # noqa: B018
    assert {"tags", "body"} < {*dir(message)}
    assert not {*dir(message)} & OF_MESSAGES.keys()
    assert pickle.loads(pickle.dumps(message)) == copy.copy(message) == message


def test_the_table_of_java_settings_is_what_errors_say() -> None:
    """Each of Java's names in docs/settings.md is explained by the setting beside it."""
    page = runpy.run_path(str(ROOT / "ci" / "settings_page.py"))
    takers = {group.__name__: taker.split(", ")[0] for group, taker in page["GROUPS"]}
    known = {
        "PushConsumer": ConsumerConfig.flat_names(),
        "every client": ConsumerConfig.flat_names(),
        "LitePullConsumer": LitePullConsumerConfig.flat_names(),
        "PullConsumer": PullConsumerConfig.flat_names(),
        "Producer": ProducerConfig.flat_names(),
        "EmbeddedBroker": {each.name for each in dataclasses.fields(BrokerConfig)},
    }
    # Its number is another one there.
    rows = {name: java for name, java in page["JAVA"].items() if not name.endswith("max_attempts")}
    for setting, java in rows.items():
        group, _, name = setting.partition(".")
        # Settings of clients alone: neither -D properties nor names with dots.
        for each in re.findall(r"(?<![.\w-])[a-z]\w*(?![.\w])", re.sub(r"\([^)]*\)", "", java)):
            assert re.search(rf"\b{name}\b", meaning_of(each, known[takers[group]])), each


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
