"""Messages: what a producer sends, and the lazy view a listener reads."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

from ordermq.core import index_messages
from ordermq.core.interface import MessageIndex
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.compression import COMPRESSED, decompress
from ordermq.model.identifiers import offset_message_id
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_sendable_topic

_IPV6_BORN = 0x10
_IPV6_STORE = 0x20
# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born timestamp
_HEAD = struct.Struct(">iiiiiqqiq")
_SYS_FLAG_LOW_BYTE = 39
_INT = struct.Struct(">i")
_TAIL = struct.Struct(">iq")  # reconsume times, prepared transaction offset
_LONG = struct.Struct(">q")


@dataclass(slots=True)
class Message:
    """A message to send.

    Args:
        topic: letters, digits and `% | _ -`, at most 127.
        body: 1 byte to 4 MiB (the producer checks the upper limit).
        tags: one tag to filter by.
        keys: words to find it by; joined with blanks, so none may hold one.
        properties: your own; names the protocol uses are refused.
        flag: 32 bits for your own use, signed.
        delay_level: 0 = now, 1..18 = the broker's levels, 1 s to 2 h; breaks order.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0

    def __post_init__(self) -> None:
        check_sendable_topic(self.topic)
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise ConfigError(
                f"message body is a {type(self.body).__name__}: expected bytes; encode text first",
                topic=self.topic,
            )
        if len(self.body) == 0:
            raise ConfigError("message body is empty: brokers refuse that", topic=self.topic)
        if isinstance(self.keys, str):
            self.keys = (self.keys,)
        if any(not isinstance(key, str) or " " in key for key in self.keys):
            raise ConfigError(
                f"message keys {list(self.keys)!r}: expected texts without blanks",
                topic=self.topic,
            )
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise ConfigError(f"Message.flag={self.flag}: expected 32 bits", topic=self.topic)
        if not 0 <= self.delay_level <= 18:
            raise ConfigError(
                f"Message.delay_level={self.delay_level}: expected 0..18", topic=self.topic
            )

    def wire_properties(self, sharding_key: str | None, unique_id: str) -> str:
        """The property text of one send.

        Raises: ConfigError: a reserved name, a separator inside, or more than 32767 bytes.
        """
        own: dict[str, str] = {}
        for name, value in self.properties.items():
            if name in _RESERVED:
                raise ConfigError(
                    f"property {name!r} belongs to the protocol: use another name or the "
                    "argument made for it",
                    topic=self.topic,
                )
            own[name] = value
        if self.tags:
            own[props.TAGS] = self.tags
        if self.keys:
            own[props.KEYS] = " ".join(self.keys)
        if self.delay_level:
            own[props.DELAY] = str(self.delay_level)
        if sharding_key:
            own[props.SHARDING_KEY] = sharding_key
        own[props.UNIQ_KEY] = unique_id
        own[props.WAIT] = "true"
        text = props.encode(own)
        if len(text) > props.MAX_BYTES // 4 and len(text.encode()) > props.MAX_BYTES:
            raise ConfigError(
                f"message properties take {len(text.encode())} bytes: expected at most "
                f"{props.MAX_BYTES}",
                topic=self.topic,
            )
        return text


_RESERVED = frozenset(
    {
        props.TAGS,
        props.KEYS,
        props.WAIT,
        props.DELAY,
        props.UNIQ_KEY,
        props.SHARDING_KEY,
        props.RETRY_TOPIC,
        props.REAL_TOPIC,
        props.REAL_QUEUE_ID,
        props.ORIGIN_MESSAGE_ID,
        props.RECONSUME_TIME,
        props.MAX_RECONSUME_TIMES,
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "TRANSFER_FLAG",
        "CONSUME_START_TIME",
        "__transactionId__",
    }
)


class MessageBatch(Sequence["MessageView"]):
    """The messages of one pull answer: the bytes as they came, indexed once, natively.

    A view is made when someone looks at a message, not before.

    Args:
        queue: where they were pulled from.
        body: concatenated stored records (protocol 2.1); kept, not copied.
        tags: keep only messages with one of these tags; empty keeps all.
    Raises: ProtocolError: a record is torn. O(n) native at construction.
    """

    def __init__(self, queue: MessageQueue, body: bytes, tags: Sequence[bytes] = ()) -> None:
        self.queue = queue
        self.body = body
        self._index: MessageIndex = index_messages(body, tags)
        self.offsets: memoryview = self._index.offsets
        self.body_sizes: memoryview = self._index.body_sizes

    # Fetched once, when the first view needs them: each access to the index makes a memoryview.

    @cached_property
    def positions(self) -> memoryview:
        """Where each record starts in `body`."""
        return self._index.positions

    @cached_property
    def body_positions(self) -> memoryview:
        """Where each message's body starts."""
        return self._index.body_positions

    @cached_property
    def property_positions(self) -> memoryview:
        """Where each message's property text starts."""
        return self._index.property_positions

    @cached_property
    def property_sizes(self) -> memoryview:
        """How many bytes each property text has."""
        return self._index.property_sizes

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, position: int) -> MessageView: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[MessageView]: ...
    def __getitem__(self, position: int | slice) -> MessageView | Sequence[MessageView]:
        if isinstance(position, slice):
            return [MessageView(self, i) for i in range(*position.indices(len(self)))]
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"message {position} of a batch of {len(self)}")
        return MessageView(self, position)


class MessageRun(Sequence["MessageView"]):
    """What a listener is called with: runs of batches, ascending in offset, views on demand."""

    __slots__ = ("_length", "segments")

    def __init__(self, segments: Sequence[tuple[MessageBatch, int, int]]) -> None:
        self.segments = segments
        length = 0
        for _, _, count in segments:
            length += count
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[MessageView]:
        for batch, first, count in self.segments:
            for position in range(first, first + count):
                yield MessageView(batch, position)

    @overload
    def __getitem__(self, position: int) -> MessageView: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[MessageView]: ...
    def __getitem__(self, position: int | slice) -> MessageView | Sequence[MessageView]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self._length))]
        wanted = position + self._length if position < 0 else position
        if 0 <= wanted < self._length:
            for batch, first, count in self.segments:
                if wanted < count:
                    return MessageView(batch, first + wanted)
                wanted -= count
        raise IndexError(f"message {position} of {self._length}")

    def offsets(self) -> list[int]:
        """The queue offsets, ascending; makes no view."""
        return [
            offset
            for batch, first, count in self.segments
            for offset in batch.offsets[first : first + count]
        ]

    @property
    def first_offset(self) -> int:
        batch, first, _ = self.segments[0]
        return int(batch.offsets[first])

    @property
    def last_offset(self) -> int:
        batch, first, count = self.segments[-1]
        return int(batch.offsets[first + count - 1])


class MessageView:
    """One received message: a position in a batch; fields are decoded when read.

    The view keeps its batch's bytes alive; copy `bytes(view.body)` to keep less.
    """

    __slots__ = ("__dict__", "_batch", "_position", "_start")

    def __init__(self, batch: MessageBatch, position: int) -> None:
        self._batch = batch
        self._position = position
        self._start: int = batch.positions[position]

    def __repr__(self) -> str:
        return f"<MessageView {self._batch.queue} offset={self.queue_offset}>"

    @property
    def message_queue(self) -> MessageQueue:
        """Where it was pulled from."""
        return self._batch.queue

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue."""
        return int(self._batch.offsets[self._position])

    @property
    def body(self) -> memoryview:
        """The body: a view of the received bytes, or, if compressed, of a decompressed copy.

        Raises: ProtocolError, ConfigError: see `compression.decompress`.
        """
        if self._batch.body[self._start + _SYS_FLAG_LOW_BYTE] & COMPRESSED:
            return memoryview(self._decompressed)
        return self.stored_body

    @property
    def stored_body(self) -> memoryview:
        """The body as stored, compressed or not; not copied."""
        batch = self._batch
        start = batch.body_positions[self._position]
        return memoryview(batch.body)[start : start + batch.body_sizes[self._position]]

    @cached_property
    def _decompressed(self) -> bytes:
        return decompress(bytes(self.stored_body), self.sys_flag)

    @cached_property
    def properties(self) -> dict[str, str]:
        """All properties, the protocol's own among them."""
        batch = self._batch
        start = batch.property_positions[self._position]
        size = batch.property_sizes[self._position]
        return props.decode_bytes(bytes(batch.body[start : start + size]))

    @property
    def stored_topic(self) -> str:
        """The topic it lies in, which for a retried message is the group's retry topic."""
        return self._batch.queue.topic

    @property
    def topic(self) -> str:
        """The topic it was sent to; restored for a retried message (semantics 4.2)."""
        return self.properties.get(props.RETRY_TOPIC) or self._batch.queue.topic

    @property
    def tags(self) -> str | None:
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(props.KEYS, "").split()

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(props.SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """The producer's id (UNIQ_KEY), or the broker's where there is none."""
        return self.properties.get(props.UNIQ_KEY) or self.offset_message_id

    @property
    def flag(self) -> int:
        return self._head[4]

    @property
    def physical_offset(self) -> int:
        return self._head[6]

    @property
    def sys_flag(self) -> int:
        return self._head[7]

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer made it, ms since 1970 on its clock."""
        return self._head[8]

    @property
    def born_host(self) -> str:
        """`address:port` of the producer."""
        return self._host(_HEAD.size, self.sys_flag & _IPV6_BORN)

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, ms since 1970 on its clock."""
        return int(_LONG.unpack_from(self._batch.body, self._start + self._after_born)[0])

    @property
    def store_host(self) -> str:
        """`address:port` of the broker that stored it."""
        return self._host(self._after_born + 8, self.sys_flag & _IPV6_STORE)

    @property
    def reconsume_times(self) -> int:
        """How often it failed before it was stored; local tries are `context.attempt`."""
        return int(_TAIL.unpack_from(self._batch.body, self._start + self._after_store)[0])

    @property
    def prepared_transaction_offset(self) -> int:
        return int(_TAIL.unpack_from(self._batch.body, self._start + self._after_store)[1])

    @property
    def offset_message_id(self) -> str:
        """The broker's id: where the record is stored (protocol 2.3)."""
        start = self._start + self._after_born + 8
        size = 16 if self.sys_flag & _IPV6_STORE else 4
        port = _INT.unpack_from(self._batch.body, start + size)[0]
        return offset_message_id(
            bytes(self._batch.body[start : start + size]), port, self.physical_offset
        )

    @cached_property
    def _head(self) -> tuple[int, int, int, int, int, int, int, int, int]:
        return _HEAD.unpack_from(self._batch.body, self._start)

    @property
    def _after_born(self) -> int:
        return _HEAD.size + (20 if self.sys_flag & _IPV6_BORN else 8)

    @property
    def _after_store(self) -> int:
        return self._after_born + 8 + (20 if self.sys_flag & _IPV6_STORE else 8)

    def _host(self, start: int, wide: int) -> str:
        start += self._start
        size = 16 if wide else 4
        address = ipaddress.ip_address(bytes(self._batch.body[start : start + size]))
        port = _INT.unpack_from(self._batch.body, start + size)[0]
        return f"[{address}]:{port}" if size == 16 else f"{address}:{port}"
