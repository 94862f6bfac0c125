"""Names, argument orders and defaults of both old clients, as read from their packages.

tests/dropin compares the lists below with the packages themselves, where they can be fetched.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from ordermq.errors import ConfigError, OrderMQError
from ordermq.rocketmq import client, consts, exceptions, ffi
from ordermq.rocketmq.message import UnsentView
from tests.dropin.old_names import (
    BOTH,
    CONTRADICTIONS,
    ENUMERATIONS,
    EXCEPTIONS,
    NOT_KEPT,
    ONLY_044,
    ONLY_200,
    Signature,
)

KEPT = {**BOTH, **ONLY_200, **ONLY_044}


def signature_of(name: str) -> Signature:
    """(argument, default) pairs, without self."""
    owner, _, method = name.partition(".")
    found = getattr(client, owner)
    if method:
        found = inspect.getattr_static(found, method)
        if isinstance(found, property):
            return ()
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    return tuple((p.name, _default(p)) for p in parameters)


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is inspect.Parameter.empty:
        return ...
    value = parameter.default
    if inspect.isfunction(value):
        return value.__name__
    return f"{type(value).__name__}.{value.name}" if hasattr(value, "name") else value


@pytest.mark.parametrize("name", sorted(KEPT))
def test_a_kept_name_takes_the_arguments_it_took(name: str) -> None:
    ours, theirs = signature_of(name), KEPT[name]
    # More arguments may follow, and what had to be given may have a default now.
    for (our_name, our_default), (their_name, their_default) in zip(ours, theirs, strict=False):
        assert our_name == their_name
        assert their_default in (..., our_default), f"{name}({their_name}={their_default!r})"
    assert len(ours) >= len(theirs)
    assert all(default is not ... for _, default in ours[len(theirs) :])


def test_what_contradicts_follows_2_0_0() -> None:
    for name, of_044 in CONTRADICTIONS.items():
        assert signature_of(name) == ONLY_200[name] != of_044


@pytest.mark.parametrize("name", sorted(ENUMERATIONS))
def test_an_enumeration_has_its_members(name: str) -> None:
    ours = {member.name: member.value for member in getattr(client, name)}
    assert ours == ENUMERATIONS[name]


@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_an_exception_has_its_parent(name: str) -> None:
    kind = getattr(exceptions, name)
    parent = EXCEPTIONS[name]
    assert issubclass(kind, OrderMQError if parent == "Exception" else getattr(exceptions, parent))


def test_what_was_not_kept_is_not_there_and_the_door_to_c_says_why() -> None:
    for name in NOT_KEPT:
        assert not hasattr(client, name)
    with pytest.raises(AttributeError, match="does not use librocketmq"):
        ffi.dll  # noqa: B018
    assert ffi.MessageModel is client.MessageModel
    assert client.MessageProperty is consts.MessageProperty


def test_every_public_name_can_be_imported_by_star() -> None:
    found: dict[str, Any] = {}
    exec("from ordermq.rocketmq.client import *", found)
    assert {name.partition(".")[0] for name in KEPT} <= set(found)


def test_programs_may_derive_from_the_old_exceptions() -> None:
    class Mine(exceptions.ProducerException):
        pass

    class Again(exceptions.ProducerException):
        pass

    assert str(Mine("text")) == "text"
    assert issubclass(Again, exceptions.RocketMQException)


def test_a_translated_error_keeps_text_place_and_cause_through_a_pickle() -> None:
    with (
        pytest.raises(exceptions.ProducerStartFailed) as caught,
        exceptions.raised_as(exceptions.ProducerStartFailed),
    ):
        raise ConfigError("no", topic="orders", broker="b")
    assert str(caught.value) == "no [topic='orders', broker='b']"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.topic) == (
        exceptions.ProducerStartFailed,
        str(caught.value),
        "orders",
    )


def test_an_old_exception_passes_the_translation_as_it_is() -> None:
    with (
        pytest.raises(exceptions.NullPointerException),
        exceptions.raised_as(exceptions.ProducerStartFailed),
    ):
        raise exceptions.NullPointerException("no")


def test_the_exception_of_an_asynchronous_send_has_its_old_fields() -> None:
    error = exceptions.ProducerSendAsyncFailed("text", 13, "Remoting.cpp", 7, "MQException")
    assert (error.error, error.file, error.line, error.type) == (
        13,
        "Remoting.cpp",
        7,
        "MQException",
    )


@pytest.mark.parametrize("value", [None, 5, 1.5])
def test_texts_that_are_none_are_refused(value: object) -> None:
    for change in (client.Message("t").set_keys, client.Message("t").set_tags):
        with pytest.raises((TypeError, exceptions.NullPointerException)):
            change(value)
    with pytest.raises(TypeError, match="expected str or bytes"):
        client.Message("t").set_body(value)


def test_properties_with_setters_of_their_own_are_set_by_name_too() -> None:
    message = client.Message("t")
    message.set_body("x")
    for name, value in (("TAGS", "a"), ("KEYS", "b c"), ("DELAY", "3"), ("mine", "d")):
        message.set_property(name, value)
    sent = message.to_send()
    assert (sent.tags, list(sent.keys), sent.delay_level) == ("a", ["b", "c"], 3)
    assert dict(sent.properties) == {"mine": "d"}


def test_a_message_looks_the_same_before_it_is_sent() -> None:
    message = client.Message("t")
    message.set_body("x")
    message.set_tags("a")
    message.set_delay_time_level(4)
    seen = client.ReceivedMessage(UnsentView.of(message.to_send(), "ID"))
    assert (seen.topic, seen.body, seen.tags, seen.keys, seen.id) == ("t", b"x", b"a", b"", "ID")
    assert (seen.delay_time_level, seen.store_size, seen.queue_offset) == (4, 0, 0)
    assert repr(seen) == "<ReceivedMessage topic='t' id='ID' body=b'x'>"
