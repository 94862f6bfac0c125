"""Messages with the setters of the old clients, and with properties as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ordermq.model import properties as props
from ordermq.model.message import Message as SentMessage
from ordermq.model.message import MessageView
from ordermq.rocketmq.consts import MessageProperty
from ordermq.rocketmq.exceptions import NullPointerException

Text = str | bytes


def text_of(value: Text, what: str) -> str:
    """Return a text given as str or as UTF-8.

    Raises: NullPointerException: None. TypeError: anything else.
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    if value is None:
        raise NullPointerException(f"{what} is None: expected a text")
    raise TypeError(f"{what} is a {type(value).__name__}: expected str or bytes")


class Message:
    """A message to send; it may be changed and sent again."""

    def __init__(self, topic: Text) -> None:
        self._topic = text_of(topic, "topic")
        self._body = b""
        self._delay_level = 0
        self._properties: dict[str, str] = {}

    def set_keys(self, keys: Text) -> None:
        """Set the index keys, separated by blanks."""
        self._properties[props.KEYS] = text_of(keys, "keys")

    def set_tags(self, tags: Text) -> None:
        """Set the tag."""
        self._properties[props.TAGS] = text_of(tags, "tags")

    def set_body(self, body: Text) -> None:
        """Set the body; a str is encoded as UTF-8. Zero bytes are sent, too."""
        if isinstance(body, str):
            self._body = body.encode()
        elif isinstance(body, bytes | bytearray | memoryview):
            self._body = bytes(body)
        else:
            raise TypeError(f"body is a {type(body).__name__}: expected str or bytes")

    def set_property(self, key: Text, value: Text) -> None:
        """Set a property of your own, or TAGS, KEYS or DELAY."""
        name, text = text_of(key, "key"), text_of(value, "value")
        if name == props.DELAY:
            self.set_delay_time_level(int(text))
        else:
            self._properties[name] = text

    def set_delay_time_level(self, delay_time_level: int) -> None:
        """Set the delay: 0 = none, 1..18 = the broker's levels, 1 s to 2 h."""
        self._delay_level = delay_time_level

    def to_send(self) -> SentMessage:
        """Return the same message for `ordermq.Producer`.

        Raises: ConfigError: no broker would accept it.
        """
        own = dict(self._properties)
        tags = own.pop(props.TAGS, "")
        keys = own.pop(props.KEYS, "")
        return SentMessage(
            self._topic,
            self._body,
            tags=tags or None,
            keys=props.split_keys(keys),
            properties=own,
            delay_level=self._delay_level,
        )


@dataclass(frozen=True, slots=True)
class UnsentView:
    """A message before it is stored, with the fields of a stored one that it has already."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    message_id: str = ""
    queue_id: int = 0
    reconsume_times: int = 0
    born_timestamp_ms: int = 0
    store_timestamp_ms: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def of(cls, message: SentMessage, message_id: str = "") -> UnsentView:
        text = message.wire_properties(None, message_id)
        return cls(message.topic, bytes(message.body), props.decode(text), message_id)

    def get_property(self, name: str) -> str | None:
        return self.properties.get(name)


class ReceivedMessage:
    """A view of a stored message, for callbacks; before a send, of the message to be sent.

    Texts are bytes, as they were; what a message does not have is b"". The view is valid for
    as long as it is kept, also after the callback.
    """

    def __init__(self, handle: MessageView | UnsentView) -> None:
        self._view = handle
        self._body: bytes | None = None

    @property
    def topic(self) -> str:
        return self._view.topic

    @property
    def tags(self) -> bytes:
        return self.get_property(props.TAGS)

    @property
    def keys(self) -> bytes:
        return self.get_property(props.KEYS)

    @property
    def body(self) -> bytes:
        """The complete body; copied once, at the first access."""
        if self._body is None:
            self._body = bytes(self._view.body)
        return self._body

    @property
    def id(self) -> str:
        return self._view.message_id

    @property
    def delay_time_level(self) -> int:
        return int(self._view.get_property(props.DELAY) or 0)

    @property
    def queue_id(self) -> int:
        return self._view.queue_id

    @property
    def reconsume_times(self) -> int:
        return self._view.reconsume_times

    @property
    def store_size(self) -> int:
        """Bytes of the stored record; 0 before it is stored. O(messages of its pull)."""
        if isinstance(self._view, UnsentView):
            return 0
        index = self._view.index
        columns = index.columns("offsets", "positions")
        position = columns["positions"][list(columns["offsets"]).index(self._view.queue_offset)]
        return int.from_bytes(index.body[position : position + 4], "big")

    @property
    def born_timestamp(self) -> int:
        """Time of its creation by the producer, ms since 1970."""
        return self._view.born_timestamp_ms

    @property
    def store_timestamp(self) -> int:
        """Time of its storage by the broker, ms since 1970."""
        return self._view.store_timestamp_ms

    @property
    def queue_offset(self) -> int:
        return self._view.queue_offset

    @property
    def commit_log_offset(self) -> int:
        return self._view.physical_offset

    @property
    def prepared_transaction_offset(self) -> int:
        return self._view.prepared_transaction_offset

    def get_property(self, prop: Text | MessageProperty) -> bytes:
        """Return a property, b"" if there is none."""
        name = prop.value if isinstance(prop, MessageProperty) else text_of(prop, "property")
        return (self._view.get_property(name) or "").encode()

    def __getitem__(self, key: Text | MessageProperty) -> bytes:
        return self.get_property(key)

    def __str__(self) -> str:
        return self.body.decode()

    def __bytes__(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        return f"<{type(self).__name__} topic={self.topic!r} id={self.id!r} body={self.body!r}>"


RecvMessage = ReceivedMessage  # the name of 0.4.4
