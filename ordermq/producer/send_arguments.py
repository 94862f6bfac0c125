"""The arguments of sends: a check of messages, and the error that shows a right call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ordermq.config.checks import refuse_misplaced, refuse_unknown
from ordermq.errors import ConfigError
from ordermq.model.message import Message, MessageView


def refuse_send(
    call: Callable[..., object],
    message: object,
    misplaced: Sequence[object],
    unknown: Mapping[str, object],
) -> NoReturn:
    """Raise TypeError for a send that was given no message, or more than takes a place.

    Other clients send a topic and a body: `send("orders", b"paid")`.

    Args: message: the first argument, a message or a batch of them.
    """
    if misplaced or not isinstance(message, Message):
        refuse_misplaced(call, (message, *misplaced), _example(call, message))
    refuse_unknown(call, unknown)


def require_batch(
    call: Callable[..., object],
    messages: object,
    misplaced: Sequence[object],
    unknown: Mapping[str, object],
) -> None:
    """Raise unless a batch is a sequence of messages of one topic, and all that was given.

    Raises: ConfigError: no messages, or of several topics. TypeError: anything else.
    """
    if misplaced or not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        refuse_misplaced(call, (messages, *misplaced), _example(call, messages))
    if unknown:
        refuse_unknown(call, unknown)
    if not messages:
        raise ConfigError("send_batch needs at least one message")
    for message in messages:
        if not isinstance(message, Message):
            refuse_misplaced(call, (message,), _example(call, message))
    if len({message.topic for message in messages}) > 1:
        raise ConfigError("send_batch takes messages of one topic only")


def _example(call: Callable[..., object], given: object) -> str:
    message = "Message(topic, body)"
    if isinstance(given, MessageView):
        message = "Message.from_view(view)"
    if call.__name__.endswith("_batch"):
        message = f"[{message}, ...]"
    elif isinstance(given, list | tuple) and given and isinstance(given[0], Message):
        name = "asend_batch" if call.__name__ == "asend" else "send_batch"
        return f"producer.{name}(messages, sharding_key=key)"
    return f"producer.{call.__name__}({message}, sharding_key=key)"
