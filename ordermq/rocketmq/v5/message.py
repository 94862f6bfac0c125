"""One class for messages that are sent and those that are received."""

from __future__ import annotations

from typing import Any

from ordermq.model import properties as props
from ordermq.model.message import Message as SentMessage
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt as Receipt
from ordermq.rocketmq.exceptions import raised_as
from ordermq.rocketmq.v5.exception import IllegalArgumentException, UnsupportedException

_ALONE = ("message_group", "delivery_timestamp")


class Message:
    """A message: assign its members, then send it; one that was received has them all.

    Raises: IllegalArgumentException: at an assignment, for what cannot be sent.
    """

    topic: str | None = None
    body: bytes | None = None
    tag: str | None = None
    message_group: str | None = None
    delivery_timestamp: int | None = None  # s since 1970; of a received message ms
    message_id: str | None = None
    namespace: str | None = None
    born_host: str | None = None
    born_timestamp: int | None = None  # ms since 1970
    delivery_attempt: int | None = None  # from 1
    corrupted = False  # such a message is never delivered

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self.properties: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is not None:
            check(self, name, value)
        super().__setattr__(name, value)

    @property
    def keys(self) -> Any:
        """The keys; an assignment adds one."""
        return self._keys

    @keys.setter
    def keys(self, key: str) -> None:
        _require_text(self, "keys", key)
        self._keys.add(key)

    def add_property(self, key: str, value: str) -> None:
        """Add a property."""
        _require_text(self, "key", key)
        _require_text(self, "value", value)
        self.properties[key] = value

    def __str__(self) -> str:
        return (
            f"topic:{self.topic}, tag:{self.tag}, message_group:{self.message_group}, "
            f"delivery_timestamp:{self.delivery_timestamp}, keys:{self._keys}, "
            f"properties:{self.properties}"
        )

    def to_send(self) -> SentMessage:
        """Return what ordermq sends.

        Raises: IllegalArgumentException: it has no topic or no body, or cannot be sent.
        """
        if self.topic is None or self.body is None:
            raise IllegalArgumentException("a message needs a topic and a body")
        with raised_as(IllegalArgumentException):
            return SentMessage(
                self.topic,
                self.body,
                tags=self.tag,
                keys=sorted(self._keys),
                properties=self.properties,
                deliver_at_ms=(self.delivery_timestamp or 0) * 1_000,
            )

    @classmethod
    def received(cls, view: MessageView) -> Message:
        """Return a message that was received."""
        message = cls()
        # Not through the checks: it may carry what this client would not send.
        message.__dict__.update(
            topic=view.topic,
            body=bytes(view.body),
            tag=view.tags,
            message_group=view.sharding_key,
            message_id=view.message_id,
            born_host=view.born_host,
            born_timestamp=view.born_timestamp_ms,
            delivery_attempt=view.reconsume_times + 1,
            properties=props.of_the_user(view.properties),
            _keys=set(view.keys),
        )
        return message


def _require_text(message: Message, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise IllegalArgumentException(f"{name} should not be blank.")


def _require_body(message: Message, name: str, value: Any) -> None:
    if not value:
        raise IllegalArgumentException("body should not be blank.")


def _require_tag(message: Message, name: str, value: Any) -> None:
    _require_text(message, name, value)
    if "|" in value:
        raise IllegalArgumentException('tag should not contain "|".')


def _require_alone(message: Message, name: str, value: Any) -> None:
    for other in _ALONE:
        if other != name and getattr(message, other):
            raise IllegalArgumentException(f"{name} and {other} should not be set at same time.")


def _refuse(message: Message, name: str, value: Any) -> None:
    raise UnsupportedException(f"{name}: ordermq does not support what RocketMQ 5.5 added with it")


_CHECKS = {
    "topic": _require_text,
    "body": _require_body,
    "tag": _require_tag,
    "message_group": _require_alone,
    "delivery_timestamp": _require_alone,
    "lite_topic": _refuse,
    "priority": _refuse,
}


class SendReceipt:
    """The outcome of a send."""

    def __init__(self, receipt: Receipt, transaction_id: str = "") -> None:
        self.message_id = receipt.message_id
        self.transaction_id = transaction_id
        self.message_queue: MessageQueue = receipt.message_queue
        self.offset = receipt.queue_offset
        self.recall_handle = receipt.recall_handle

    def __str__(self) -> str:
        return f"message_id:{self.message_id}"
