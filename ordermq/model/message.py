"""Messages to send, and received messages as lazy views."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Never, Self, overload

from ordermq import core, json_text
from ordermq.core.compression import MAX_DECOMPRESSED_BYTES
from ordermq.errors import ConfigError, DecodeError, ProtocolError, StateError
from ordermq.model import identifiers
from ordermq.model import properties as props
from ordermq.model.foreign_attributes import OF_MESSAGES, OF_VIEWS, explain_attributes
from ordermq.model.hashing import key_text
from ordermq.model.identifiers import host_of, offset_message_id
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_sendable_topic, unwrapped
from ordermq.wall_time import require_wall_ms, span_ms, unit_hint, wall_ms_of, whole_number

if TYPE_CHECKING:
    from datetime import datetime
    from typing import TypedDict

    from typing_extensions import TypeVar

    from ordermq.model.codec import Codec
    from ordermq.wall_time import Span

    # Covariant: a listener of any values takes those of a type.
    _Value = TypeVar("_Value", default=Any, covariant=True)

    class MessageFields(TypedDict, total=False):
        """Keywords of `Producer.message`: the fields of `Message` behind its body."""

        tags: str | None
        keys: Sequence[str]
        properties: Mapping[str, str]
        flag: int
        delay_level: int
        deliver_at_ms: int | datetime
        delay_ms: Span
else:
    from typing import TypeVar

    _Value = TypeVar("_Value", covariant=True)


# Bits of `sys_flag`: a record that holds several messages has these bits, and each of its messages.
INNER_BATCH = 0x40 | 0x80
# A character has at most four bytes, so most texts need not be encoded to be measured.
_SURELY_SHORT = props.MAX_SENT_BYTES // 4
_BODIES = (bytes, bytearray, memoryview)  # a tuple, because `a | b` would be created on each call


@dataclass(slots=True, init=False)
class Message:
    """A message to send.

    Args:
        topic: letters, digits and `% | _ -`, at most 127.
        body: 1 byte to 4 MiB (the producer checks the upper limit).
        tags: one tag, for filters; with `|`, a comma, or blanks around it no subscription but `*`
            finds the message, and a proxy refuses the `|`.
        keys: keys for queries; without blanks, which separate them; a tab is a part of its key.
        properties: user properties; names used by the protocol are refused.
        flag: 32 bits for your own use, signed.
        delay_level: 0 = now, 1..18 = the broker's levels, 1 s to 2 h; breaks order.
        deliver_at_ms: time of delivery, ms since 1970, or a datetime; 0 = now; breaks order.
        delay_ms: time of delivery, in ms after the broker stored it, as "3s", or a timedelta;
            0 = now; breaks order.
            Both need a broker since 5.0; RocketMQ's rounds to seconds, up to three days ahead.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    deliver_at_ms: int = 0
    delay_ms: int = 0
    # Set by TransactionProducer, for the listener that executes the local transaction.
    transaction_id: str | None = field(default=None, init=False, compare=False)

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at_ms: int | datetime = 0,
        delay_ms: Span = 0,
        **unknown: Never,
    ) -> None:
        # By hand: names of other clients are explained, at no cost beside the constructor and the
        # `__post_init__` that a dataclass has.
        if unknown:
            from ordermq.config.checks import refuse_unknown  # only for a mistake

            refuse_unknown(Message, unknown)
        self.topic = check_sendable_topic(topic)
        self.body = body
        self.tags = tags
        self.keys = keys
        self.properties = {} if properties is None else properties
        self.flag = flag
        self.delay_level = delay_level
        self.deliver_at_ms = deliver_at_ms  # type: ignore[assignment] # until it is checked
        self.delay_ms = delay_ms  # type: ignore[assignment] # as above
        self.transaction_id = None
        if not isinstance(body, _BODIES):
            raise self._bad_body()
        if isinstance(body, memoryview) and body.nbytes != len(body):
            self.body = body = bytes(body)  # its length counts items; limits are of bytes
        if len(body) == 0:
            raise ConfigError("message body is empty: brokers refuse it", topic=topic)
        if tags and not isinstance(tags, str):
            raise self._bad_tags()
        if type(keys) is not tuple or keys:
            self._check_keys()
        if properties:
            self._check_properties()
        # One test for the common case, in which none is set: this runs for every message sent.
        if flag or delay_level or deliver_at_ms or delay_ms:
            self._check_numbers()

    def __repr__(self) -> str:
        # Not the body: it may be long, and what is in it is nobody else's to log.
        shown = f"<Message {self.topic} {len(self.body)} bytes"
        for name in ("tags", "keys", "properties", "delay_level", "deliver_at_ms", "delay_ms"):
            if value := getattr(self, name):
                shown += f" {name}={value!r}"
        return shown + ">"

    @classmethod
    def from_view(cls, view: MessageView, *, topic: str | None = None) -> Self:
        """Copy a received message, to send it again, or on to another topic.

        The copy has the topic that the message was sent to (a retried message's and a dead
        letter's, too), its body (decompressed), tags, keys, flag and user properties. It is sent
        as a new message: its id, delivery time, retry and transaction state are left out
        (docs/producer.md#send-a-received-message-again). Its order is kept if you send it with
        `sharding_key=view.sharding_key`.

        Raises: ProtocolError: the body or the properties cannot be read. ConfigError: the body is
            empty, or `topic` is none to send to.
        """
        return cls(
            view.topic if topic is None else topic,
            bytes(view.body),
            tags=view.tags,
            keys=tuple(view.keys),
            properties=props.of_the_user(view.properties),
            flag=view.flag,
        )

    def _bad_body(self) -> ConfigError:
        problem = f"message body is a {type(self.body).__name__}: expected bytes; encode text first"
        if isinstance(self.tags, bytes) or isinstance(self.keys, bytes):
            # Java's constructors are (topic, tags, body) and (topic, tags, keys, body).
            problem = (
                "message has bytes in place of tags or keys: write Message(topic, body, tags=)"
            )
        return ConfigError(problem, topic=self.topic)

    def _bad_tags(self) -> ConfigError:
        return ConfigError(
            f"message tags={self.tags!r}: expected one tag as a str, not a "
            f"{type(self.tags).__name__}",
            topic=self.topic,
        )

    def _check_properties(self) -> None:
        # A dict first: to ask for a Mapping takes long. Names and values are looked at as the
        # message is sent, which takes them one by one anyway.
        if type(self.properties) is not dict and not isinstance(self.properties, Mapping):
            raise ConfigError(
                f"message properties are a {type(self.properties).__name__}: expected a dict of "
                "str to str",
                topic=self.topic,
            )

    def _check_keys(self) -> None:
        if isinstance(self.keys, bytes):
            raise self._bad_body()
        if isinstance(self.keys, str):
            self.keys = (self.keys,) if self.keys else ()
        elif not isinstance(self.keys, (list, tuple)):  # an array has no truth, a generator one use
            try:
                self.keys = () if self.keys is None else tuple(self.keys)
            except TypeError:
                raise ConfigError(
                    f"message keys={self.keys!r}: expected a str, or a list of them",
                    topic=self.topic,
                ) from None
        if any(not isinstance(key, str) or " " in key for key in self.keys):
            raise ConfigError(
                f"message keys {list(self.keys)!r}: expected str without blanks; for several give "
                "a list",
                topic=self.topic,
            )

    def _check_numbers(self) -> None:
        for name in ("flag", "delay_level"):
            if not isinstance(getattr(self, name), int):
                raise ConfigError(
                    f"Message.{name}={getattr(self, name)!r}: expected an int", topic=self.topic
                )
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise ConfigError(f"Message.flag={self.flag}: expected 32 bits", topic=self.topic)
        if not 0 <= self.delay_level <= 18:
            raise ConfigError(
                f"Message.delay_level={self.delay_level}: expected 0..18", topic=self.topic
            )
        if self.is_timed:
            self._check_timer()

    def _check_timer(self) -> None:
        if type(self.delay_ms) is not int:
            self.delay_ms = span_ms("Message.delay_ms", self.delay_ms)
        if type(self.deliver_at_ms) is not int:
            self.deliver_at_ms = _delivery_ms(self.deliver_at_ms, self.topic)
        for name in ("deliver_at_ms", "delay_ms"):
            if not 0 <= getattr(self, name) < 1 << 62:
                raise ConfigError(
                    f"Message.{name}={getattr(self, name)}: expected 0 or more", topic=self.topic
                )
        if bool(self.delay_level) + bool(self.deliver_at_ms) + bool(self.delay_ms) > 1:
            raise ConfigError(
                "message has several delivery times: set one of delay_level, deliver_at_ms and "
                "delay_ms",
                topic=self.topic,
            )
        # A time in the past: a broker would deliver it at once.
        require_wall_ms("Message.deliver_at_ms", self.deliver_at_ms)

    @property
    def is_timed(self) -> bool:
        """True if it has a time of delivery, which brokers before 5.0 ignore."""
        return bool(self.deliver_at_ms or self.delay_ms)

    @property
    def is_delayed(self) -> bool:
        """True if it is delivered later than it is stored."""
        return bool(self.delay_level or self.deliver_at_ms or self.delay_ms)

    def wire_properties(
        self, sharding_key: str | None, unique_id: str, added: Mapping[str, str] | None = None
    ) -> str:
        """Return the encoded properties of one send.

        Args:
            added: further properties of the protocol.

        Raises: ConfigError: a reserved name, a separator, or more than 32127 bytes.
        """
        text = f"{_ID_BEGIN}{unique_id}{_ID_END}"
        if self.properties or self.tags or self.keys or self.is_delayed or added:
            own = self._own_properties()
            if sharding_key:
                own[props.SHARDING_KEY] = sharding_key
            if added:
                own |= added
            text = props.encode(own) + text
            _require_short(text, self.topic)
        elif sharding_key:  # nearly all ordered messages
            text = f"{_text_before_id(sharding_key)}{unique_id}{_ID_END}"
            _require_short(text, self.topic)
        return text

    def _own_properties(self) -> dict[str, str]:
        own: dict[str, str] = {}
        for name, value in self.properties.items():
            _require_free(name, self.topic)
            own[name] = value
        if self.tags:
            if not isinstance(self.tags, str):  # it was assigned later
                raise self._bad_tags()
            own[props.TAGS] = self.tags
        if self.keys:
            own[props.KEYS] = " ".join(self.keys)
        if self.delay_level:
            own[props.DELAY] = str(self.delay_level)
        if self.deliver_at_ms:
            own[props.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.delay_ms:
            own[props.TIMER_DELAY_MS] = str(self.delay_ms)
        return own


explain_attributes(Message, OF_MESSAGES)


def _delivery_ms(moment: object, topic: str) -> int:
    from datetime import datetime  # here, as few give one

    found = whole_number(moment)
    if found is not None:
        return found
    try:
        if isinstance(moment, datetime):
            return wall_ms_of(moment)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(
        f"Message.deliver_at_ms={moment!r}: expected ms since 1970 as an int, or a datetime"
        f"{unit_hint(moment)}; delay_ms takes a length of time, as '3s'",
        topic=topic,
    )


def with_own_properties(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that have properties besides their id."""
    return [
        message
        for message in messages
        if message.properties
        or message.tags
        or message.keys
        or message.delay_level
        or message.deliver_at_ms
        or message.delay_ms
    ]


def id_only_properties(
    topic: str, sharding_key: str | None, unique_ids: Sequence[str]
) -> list[str]:
    """Return `Message.wire_properties` of messages that have no properties but their id.

    Raises: ConfigError: as there.
    """
    begin, end = _text_before_id(sharding_key or ""), _ID_END
    if sharding_key:
        _require_short(f"{begin}{unique_ids[0]}{end}", topic)
    return [f"{begin}{unique_id}{end}" for unique_id in unique_ids]


@functools.lru_cache(4_096)  # encoding it was a fifth of what the caller of a send does
def _text_before_id(sharding_key: str) -> str:
    return (props.encode({props.SHARDING_KEY: sharding_key}) if sharding_key else "") + _ID_BEGIN


class PlainMessages:
    """Makes the pending messages of `Message`s that have no properties but their key and their id.

    Their properties are those of `Message.wire_properties`; the rest of a message is not looked at.

    Args: kind: of the pending messages.
    """

    def __init__(self, kind: type[core.PendingFields[Any]]) -> None:
        self._pending = identifiers.plain_sends(_ID_END, kind).pending

    def pending(
        self, message: Message, key: str | int | None, on_done: Callable[[Any], object]
    ) -> Any:
        """Return the pending message of a plain one, None if it has to be made in full.

        Raises: ConfigError: as `Message.wire_properties`.
        """
        if (
            message.properties
            or message.tags
            or message.keys
            or message.delay_level
            or message.deliver_at_ms
            or message.delay_ms
        ):
            return None
        if key is None:
            before = _ID_BEGIN
        else:
            before = _text_before_id(key if type(key) is str else key_text(key))
        if len(before) > _SURELY_SHORT_BEFORE_ID:
            return None
        now_ms = time.time_ns() // 1_000_000
        return self._pending(message.body, before, message.flag, key, on_done, now_ms)


def extended_properties(text: str, added: Mapping[str, str], topic: str) -> str:
    """Return the encoded properties of a message with further ones.

    Raises: ConfigError: as `Message.wire_properties`.
    """
    for name in added:
        _require_free(name, topic)
    text = props.encode(added) + text
    _require_short(text, topic)
    return text


def _require_free(name: str, topic: str) -> None:
    if name in RESERVED_PROPERTIES:
        raise ConfigError(
            f"property {name!r} is reserved by the protocol: use another name, or the argument of "
            "Message or send for it",
            topic=topic,
        )


def _require_short(text: str, topic: str) -> None:
    if len(text) > _SURELY_SHORT and len(text.encode()) > props.MAX_SENT_BYTES:
        raise ConfigError(
            f"message properties take {len(text.encode())} bytes: expected at most "
            f"{props.MAX_SENT_BYTES}, which leaves a retry or a dead letter room for its own",
            topic=topic,
        )


# Properties of every message, encoded once: encoding them each time was a third of the cost of a
# message.
_ID_BEGIN, _ID_END = props.encode_plain(props.UNIQ_KEY, "?").split("?")
_ID_END += props.encode_plain(props.WAIT, "true")
_SURELY_SHORT_BEFORE_ID = _SURELY_SHORT - 32 - len(_ID_END)

RESERVED_PROPERTIES = frozenset(
    {
        props.TAGS,
        props.KEYS,
        props.WAIT,
        props.DELAY,
        props.TIMER_DELAY_S,
        props.TIMER_DELAY_MS,
        props.TIMER_DELIVER_MS,
        props.TIMER_OUT_MS,
        props.UNIQ_KEY,
        props.SHARDING_KEY,
        props.RETRY_TOPIC,
        props.REAL_TOPIC,
        props.REAL_QUEUE_ID,
        props.ORIGIN_MESSAGE_ID,
        props.RECONSUME_TIME,
        props.MAX_RECONSUME_TIMES,
        props.TRANSACTION_PREPARED,
        props.PRODUCER_GROUP,
        props.TRANSACTION_ID,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "TRANSFER_FLAG",
        "CONSUME_START_TIME",
    }
)


class MessageBatch(core.MessageIndex, Sequence["MessageView"]):
    """Messages of one pull response: its bytes, indexed once in native code.

    A view of a message is created when the message is read.

    Args:
        queue: the queue they were pulled from.
        body: consecutive records (docs/internals/protocol.md#stored-message); kept, not copied.
        tags: keep only messages with one of these tags; empty keeps all.
        namespace: the client's, which `MessageView.topic` removes; empty for none.
        check_crc, pulled, max_decompressed_bytes: as of `core.contract.MessageIndex`.
    Raises: ProtocolError: a record is truncated, malformed, damaged or no answer to the pull.
        O(n) native at construction.
    """

    __slots__ = ("attempts", "codec", "namespace", "queue")

    codec: Codec  # set where messages of a client that has one are handed out, and unset elsewhere

    def __init__(
        self,
        queue: MessageQueue,
        body: bytes,
        tags: Sequence[bytes] = (),
        namespace: str = "",
        check_crc: bool = False,
        pulled: tuple[int, int, int] | None = None,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        core.MessageIndex.__init__(self, body, tags, check_crc, pulled, max_decompressed_bytes)
        self.queue = queue
        self.namespace = namespace
        # How often an orderly listener of this process has failed, by offset; None until one has.
        self.attempts: dict[int, int] | None = None

    @classmethod
    def unfilled(cls, queue: MessageQueue, namespace: str) -> MessageBatch:
        """Return a batch that gets its messages from the pull engine."""
        batch = cls.__new__(cls)
        batch.queue = queue
        batch.namespace = namespace
        batch.attempts = None
        return batch

    def set_attempts(self, offset: int, attempts: int) -> None:
        """Note the failed attempts of one message."""
        if self.attempts is None:
            self.attempts = {}
        self.attempts[offset] = attempts

    def sole_message(self) -> MessageView:
        """Return the message of a record that came alone.

        Raises: ProtocolError: the record is an inner batch of no messages.
        """
        if not len(self):
            raise ProtocolError("a stored record that holds no message", topic=self.queue.topic)
        return self[0]

    def __iter__(self) -> Iterator[MessageView]:
        return self.views(MessageView, 0, len(self))

    @overload
    def __getitem__(self, position: int) -> MessageView: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[MessageView]: ...
    def __getitem__(self, position: int | slice) -> MessageView | Sequence[MessageView]:
        if isinstance(position, slice):
            return [MessageView(self, i) for i in range(*position.indices(len(self)))]
        if position < 0:
            position += len(self)
        return MessageView(self, position)


class MessageRun(core.MessageRun, Sequence["MessageView"]):
    """Messages of one listener call, in order of their offsets; views are created on demand."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind, count = type(self).__name__, len(self)
        if not count:
            return f"<{kind} without messages>"
        first, last = self[0], self[-1]
        offsets = f"{first.queue_offset}..{last.queue_offset}"
        return f"<{kind} {first.message_queue} offsets={offsets} {count} messages>"

    def __iter__(self) -> Iterator[MessageView]:
        return self.views(MessageView)

    @overload
    def __getitem__(self, position: int) -> MessageView: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[MessageView]: ...
    def __getitem__(self, position: int | slice) -> MessageView | Sequence[MessageView]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        wanted = position + len(self) if position < 0 else position
        view: MessageView = self.view(MessageView, wanted)
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        # As a list: what else a run may be is of the process that received it.
        return list, ([*self],)

    def parts(self, size: int) -> Iterator[MessageRun]:
        """Split into runs of `size` messages, the last one perhaps shorter; creates no view."""
        return self.cut(MessageRun, size)

    def decode_with(self, codec: Codec) -> None:
        """Have `value()` of these messages use `codec`. O(segments)."""
        for batch, _, _ in self.segments:
            batch.codec = codec


# Bound once: `super()` takes longer than reading the record.
_stored_reconsume_times = core.MessageView.reconsume_times.__get__


class MessageView(core.MessageView, Generic[_Value]):
    """One received message: batch and position; fields are decoded when they are read.

    `MessageView[Order]` is one whose `value()` is an Order to type checkers, as the codec of the
    client makes it; a bare `MessageView` is one of any value.

    The fields of the record are those of `core.contract.MessageView`; a compressed `body` is
    decompressed on its first read, in core. The view keeps the bytes of its whole batch alive;
    copy `bytes(view)` to keep the body alone.

    Each read of a batch makes views anew. Those of one stored message are equal, so that `in`,
    `index` and `count` of a batch are right.

    Attributes:
        offset: its place in the queue; RocketMQ's name for it is `queue_offset`.
    """

    __slots__ = ()

    index: MessageBatch

    # The property of the core under its short name: a method around it would take twice as long.
    offset = core.MessageView.queue_offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageView):
            return NotImplemented
        # Fields of the record: its properties might be damaged. The store time tells the message
        # of another life of the topic, at the same place.
        return self is other or (
            self.queue_offset == other.queue_offset
            and self.store_timestamp_ms == other.store_timestamp_ms
            and self.message_queue == other.message_queue
        )

    def __hash__(self) -> int:
        return hash((self.queue_offset, self.store_timestamp_ms))

    def __repr__(self) -> str:
        shown = f"<MessageView {self.message_queue} offset={self.queue_offset}"
        try:
            for name in ("sharding_key", "tags", "keys", "reconsume_times"):
                if value := getattr(self, name):
                    shown += f" {name}={value!r}"
        except ProtocolError:  # a repr must not raise: it is wanted most for what is damaged
            shown += " with unreadable properties"
        return f"{shown} {len(self.stored_body)} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Take the message's own record along, not the others of its batch. O(batch)."""
        index, offset = self.index, self.queue_offset
        record = record_with(index.body, offset)
        failed = index.attempts.get(offset) if index.attempts else None
        codec = getattr(index, "codec", None)
        limit = index.max_decompressed_bytes
        return _unpickled, (index.queue, record, offset, index.namespace, limit, failed, codec)

    def __copy__(self) -> Self:
        return self  # it cannot be changed

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __bytes__(self) -> bytes:
        """Copy the body."""
        return bytes(self.body)

    def text(self, encoding: str = "utf-8") -> str:
        """Return the body as text.

        Raises: DecodeError: it is none in this encoding, or it cannot be decompressed.
        """
        try:
            return str(self.body, encoding)
        except UnicodeDecodeError as error:
            raise self._undecodable(f"the body is no {encoding} text: {error.reason}") from error

    def json(self) -> Any:
        """Return the value that the body is the JSON of.

        Raises: DecodeError: it is no JSON, or it cannot be decompressed.
        """
        try:
            return json_text.loads(self.body)
        except json_text.JSONDecodeError as error:
            raise self._undecodable(f"the body is no JSON: {error}") from error

    def value(self) -> _Value:
        """Return the value that the codec of the client makes of the body; at each call anew.

        Raises:
            DecodeError: it makes none of it, and its own error is the cause; or the body cannot be
                decompressed.
            StateError: the client that received the message has no `codec`.
        """
        codec = getattr(self.index, "codec", None)
        if codec is None:
            raise StateError(
                "message.value() needs a codec: give codec=JsonCodec(), or one of yours, to the "
                "client that receives the message",
                topic=self.message_queue.topic,
            )
        body = bytes(self.body)
        try:
            value: _Value = codec.decode(body)
        except Exception as error:
            from ordermq.model.json_types import JsonMismatch

            # A mismatch tells where, and nothing of the body, which is nobody else's to log.
            told = str(error) if isinstance(error, JsonMismatch) else type(error).__name__
            raise self._undecodable(
                f"{codec!r} does not decode the {len(body)} bytes: {told}. No retry mends that: "
                "on_failure=DeadLetter(dead_letter_on=DecodeError) moves such messages at once"
            ) from error
        return value

    def _undecodable(self, reason: str) -> DecodeError:
        queue = self.message_queue
        return DecodeError(
            reason,
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            offset=self.queue_offset,
        )

    @property
    def reconsume_times(self) -> int:
        """Number of failed deliveries before this one.

        A concurrent group's are counted by the broker, with the record. To these an orderly group
        adds the failed attempts of its present owner; after a take-over they start again, as in
        Java. Columns (`to_arrow`) have the record's number alone.
        """
        attempts = self.index.attempts
        stored: int = _stored_reconsume_times(self)
        return stored + attempts.get(self.queue_offset, 0) if attempts else stored

    @property
    def message_queue(self) -> MessageQueue:
        """Queue that it was pulled from."""
        return self.index.queue

    @property
    def stored_topic(self) -> str:
        """Topic it is stored in; for a retried message the group's retry topic."""
        return self.index.queue.topic

    @property
    def topic(self) -> str:
        """Topic it was sent to, also for a retried message
        (docs/internals/semantics.md#consume-loop).
        """
        sent_to = self.get_property(props.RETRY_TOPIC)
        return unwrapped(self.index.namespace, sent_to) if sent_to else self.index.queue.topic

    @property
    def message_id(self) -> str:
        """The producer's id (UNIQ_KEY), or the broker's id if it has none."""
        return self.get_property(props.UNIQ_KEY) or self.offset_message_id

    @property
    def transaction_id(self) -> str:
        """The id by which `check` knows the transaction: `Message.transaction_id` in `execute`."""
        return self.message_id

    @property
    def wants_reply(self) -> bool:
        """True if the sender waits for a reply (`Producer.reply`)."""
        return bool(self.get_property(props.REPLY_TO_CLIENT))

    @property
    def born_host(self) -> str:
        """`address:port` of the producer."""
        return host_of(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        """`address:port` of the broker that stored it."""
        return host_of(self.store_host_bytes)

    @property
    def offset_message_id(self) -> str:
        """The broker's id: position of the record (docs/internals/protocol.md#identifiers)."""
        host = self.store_host_bytes
        port = int.from_bytes(host[-4:], "big", signed=True)
        return offset_message_id(host[:-4], port, self.physical_offset)


explain_attributes(MessageView, OF_VIEWS)


def record_with(body: bytes, offset: int) -> bytes:
    """Return the stored record that holds a message, alone or as one of an inner batch."""
    at = end = 0
    while end < len(body):
        size, first = int.from_bytes(body[end : end + 4]), int.from_bytes(body[end + 20 : end + 28])
        if first > offset:
            break
        at, end = end, end + size
    return body[at:end]


def _unpickled(
    queue: MessageQueue,
    record: bytes,
    offset: int,
    namespace: str,
    max_decompressed_bytes: int,
    failed: int | None,
    codec: Codec | None,
) -> MessageView:
    batch = MessageBatch(
        queue, record, namespace=namespace, max_decompressed_bytes=max_decompressed_bytes
    )
    if failed is not None:
        batch.set_attempts(offset, failed)
    if codec is not None:
        batch.codec = codec
    return batch[[*batch.offsets].index(offset)]
