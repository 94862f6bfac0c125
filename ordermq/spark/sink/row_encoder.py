"""Encoding of Arrow rows as message batches per target queue, without a Python object per row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ordermq import core
from ordermq.errors import ConfigError
from ordermq.model import properties as props
from ordermq.model.message import RESERVED_PROPERTIES
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_sendable_topic
from ordermq.producer.queue_selector import index_of
from ordermq.remoting.command import MAX_FRAME_BYTES
from ordermq.spark.options import Order, SinkOptions
from ordermq.spark.row_order import missing_origin_columns, text_values
from ordermq.spark.schema import STAMP_ROW, STAMP_SEQUENCE, STAMP_SOURCE, STAMP_UNORDERED
from ordermq.spark.sink.block_sender import MOST_ROWS, Block
from ordermq.spark.sink.row_stamps import SourceOrder, Stamps

_Numbers = np.ndarray[Any, Any]
# Distinct keys that a task reports to the driver: a report travels through Spark as a pickle.
MAX_REPORTED_KEYS = 10_000
# Keys whose target queue is remembered: a topic with ever new keys must not fill the memory.
_MAX_KNOWN_KEYS = 100 * MAX_REPORTED_KEYS
# A request with one message of this size is a frame that no broker takes, and all close the
# connection without a word.
_MOST_BYTES: Final = MAX_FRAME_BYTES - 65_536
_MOST_SHOWN: Final = 200  # characters of a value in an error


class UniqueKeys:
    """The UNIQ_KEY property of messages: 10 random bytes per process, then time and a count."""

    def __init__(self) -> None:
        self._salt = os.urandom(10)
        self._next = 0

    def take(self, count: int) -> bytes:
        """Return the first of `count` consecutive keys."""
        # The time makes keys of later batches greater even after a worker was replaced; `max`
        # keeps them unique where more than 65,536 are taken per millisecond.
        self._next = max(self._next, time.time_ns() // 1_000_000 % (1 << 31) << 16)
        first, self._next = self._next, self._next + count
        return self._salt + first.to_bytes(6, "big")


class RowEncoder:
    """Encodes the record batches of one task.

    Args:
        options: of the sink.
        columns: the DataFrame's.
        queues: returns the target queues of a topic, sorted.
        origin: source and sequence of the stamps where rows have no origin columns; a sequence of
            None counts the rows.
        partition: Spark's number; chooses the queue of a row with neither key nor origin.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Sequence[str],
        queues: Callable[[str], Sequence[MessageQueue]],
        origin: tuple[str, int | None],
        partition: int,
    ) -> None:
        self._options = options
        # Spark takes a column's name in any case, and rows come with the case that was written.
        self._columns = options.column_names(columns)
        self._ask_queues = queues
        self._known_queues: dict[str, Sequence[MessageQueue]] = {}
        self._origin = origin
        self._partition = partition
        self._index = index_of(options.selector)
        # By topic: the index of each key's queue; -1 for rows without a key.
        self._index_of_key: dict[str, dict[str | None, int]] = {}
        self._has_many_keys = False  # more than one of two rows has a key of its own
        self._unique = UniqueKeys()
        self._rows = 0
        has_origins = not missing_origin_columns(self._columns)
        is_ordered = options.order is not Order.NONE
        self.source_order = SourceOrder(is_ordered) if has_origins else None
        self._writer = "" if is_ordered or not has_origins else STAMP_UNORDERED
        if options.writer:
            self._writer += f"{options.writer}:"
        self.targets: set[MessageQueue] = set()
        self.keys: set[str] | None = set() if options.key_column else None

    @property
    def rows(self) -> int:
        """Number of rows encoded so far."""
        return self._rows

    @property
    def is_bulk(self) -> bool:
        """True if no row has a tag, a key or a property to be found by."""
        return not {"tags", "keys", "properties"}.intersection(self._columns)

    def encode(self, batch: Any) -> dict[MessageQueue, list[Block]]:
        """Encode the rows of a record batch, those of each queue in order.

        Raises: ConfigError: a row that no broker accepts, or without a target. OrderingError:
            rows are out of order.
        """
        found: dict[MessageQueue, list[Block]] = {}
        if not batch.num_rows:
            return found
        batch = batch.rename_columns(self._columns)
        if not self._rows:
            self._check_kinds(batch.schema)
        keys = self._keys(batch)
        stamps = self._stamps(batch, keys)
        bodies = text_values(batch.column(self._options.body_column))
        fixed, named = self._properties(batch, keys, stamps)
        for queue, rows in self._by_target(batch, keys):
            self.targets.add(queue)
            found[queue] = self._encode_rows(batch, bodies, rows, fixed, named)
        self._rows += batch.num_rows
        return found

    def _encode_rows(
        self, batch: Any, bodies: Any, rows: _Numbers, fixed: bytes, named: list[Any]
    ) -> list[Block]:
        found: list[Block] = []
        unique = self._unique.take(len(rows))
        done, base = 0, int.from_bytes(unique, "big")
        # The core encodes as many rows as fit into one request and says how many those were.
        while done < len(rows):
            try:
                body, count = core.encode_rows(
                    bodies,
                    rows[done : done + MOST_ROWS].data,
                    fixed=fixed,
                    columns=named,
                    unique=(base + done).to_bytes(16, "big"),
                    most_bytes=self._options.config.send.max_batch_bytes,
                )
            except ValueError as error:
                raise self._refused(batch, str(error)) from None
            if len(body) > _MOST_BYTES:  # one row: it is alone where it exceeds max_batch_bytes
                raise self._too_long(batch, int(rows[done]), len(body))
            found.append(Block(body, count))
            done += count
        return found

    def _too_long(self, batch: Any, row: int, size: int) -> ConfigError:
        return ConfigError(
            f"row {self._rows + row} of the task is a message of {size} bytes, and no broker takes "
            f"a request of more than {MAX_FRAME_BYTES}; most take messages of 4 MiB: divide it, or "
            f"send a reference to where it is stored; the row has {self._shown(batch, row)}"
        )

    def _refused(self, batch: Any, text: str) -> ConfigError:
        # The core says "row N: ..." and knows neither columns nor values.
        row = int(text.split("row ")[1].split(":")[0])
        values = batch.slice(row, 1).to_pylist()[0]
        body = values[self._options.body_column]
        lack = "null" if body is None else "empty"
        reason = (
            f"its body is {lack}, column {self._options.body_column!r}"
            if not body
            else (
                "a key, tag or property contains U+0001 or U+0002, or its properties exceed "
                f"{props.MAX_BYTES} bytes"
            )
        )
        return ConfigError(
            f"no broker accepts row {self._rows + row} of the task: {reason}. Filter or change "
            f"such rows before the write; the row has {self._shown(batch, row)}"
        )

    def _shown(self, batch: Any, row: int) -> dict[str, Any]:
        # Bodies stay out of errors: these end in logs.
        bodies = ("body", self._options.body_column)
        values = batch.slice(row, 1).to_pylist()[0]
        return {name: _shortened(each) for name, each in values.items() if name not in bodies}

    # The columns.

    def _check_kinds(self, schema: Any) -> None:
        """Refuse columns of types that no message can have."""
        options = self._options
        wanted = [(options.body_column, _is_text_or_bytes, "BINARY or STRING", _MAKE_BODY)]
        if options.key_column:
            wanted.append((options.key_column, _is_key, _KEY_KINDS, ""))
        if options.topic_column:
            wanted.append((options.topic_column, _is_text, "STRING", ""))
        if options.queue_column:
            wanted.append((options.queue_column, pa.types.is_integer, "an integer type", ""))
        for name, is_right, kinds in _OWN_COLUMNS:
            if name in self._columns:
                wanted.append((name, is_right, kinds, ""))
        faults = [
            f"column {name!r} is {schema.field(name).type}, expected {kinds}{more}"
            for name, is_right, kinds, more in wanted
            if not is_right(schema.field(name).type)
        ]
        if faults:
            raise ConfigError(f"{'; '.join(faults)}. Cast them, rename them or leave them out")

    def _keys(self, batch: Any) -> Any | None:
        name = self._options.key_column
        if not name:
            return None
        return key_texts(name, batch.column(name))

    def _stamps(self, batch: Any, keys: Any | None) -> Stamps:
        if self.source_order is not None:
            return self.source_order.stamps(batch, keys)
        source, sequence = self._origin
        count = batch.num_rows
        rows = np.arange(self._rows, self._rows + count, dtype=np.int64)
        if sequence is None:
            return Stamps(source, None, rows, None)
        return Stamps(source, None, np.full(count, sequence, dtype=np.int64), rows)

    def _properties(self, batch: Any, keys: Any | None, stamps: Stamps) -> tuple[bytes, list[Any]]:
        """Return the properties that all rows share, encoded, and the columns of the others."""
        # No WAIT, which Java's client gives to each: of a batch, brokers ask the request for it.
        fixed: dict[str, str] = {}
        named: list[Any] = []
        if stamps.source is not None:
            fixed[STAMP_SOURCE] = self._writer + stamps.source
        else:
            sources = stamps.sources
            if self._writer:
                sources = pc.binary_join_element_wise(self._writer, sources, "")
            named.append((STAMP_SOURCE.encode(), text_values(sources)))
        named.append((STAMP_SEQUENCE.encode(), stamps.sequence.data))
        if stamps.rows is not None:
            named.append((STAMP_ROW.encode(), stamps.rows.data))
        if keys is not None:
            named.append((props.SHARDING_KEY.encode(), text_values(keys)))
        for column, name in (("tags", props.TAGS), ("keys", props.KEYS)):
            if column in self._columns:
                named.append((name.encode(), text_values(_words(column, batch.column(column)))))
        if "properties" in self._columns:
            # An empty name: the core appends these texts as they are.
            named.append((b"", text_values(_own_properties(batch.column("properties")))))
        return props.encode(fixed).encode(), named

    # The target queues.

    def _by_target(self, batch: Any, keys: Any | None) -> list[tuple[MessageQueue, _Numbers]]:
        """Return the row numbers of each target queue, ascending."""
        if not self._options.topic_column:
            every = np.arange(batch.num_rows, dtype=np.uint32)
            return self._by_queue(self._options.topic, batch, keys, every)
        name = self._options.topic_column
        coded = _as_text(name, batch.column(name)).dictionary_encode()
        if coded.null_count:
            raise ConfigError(f"column {name!r} has nulls: every row needs a topic")
        codes = coded.indices.to_numpy()
        found: list[tuple[MessageQueue, _Numbers]] = []
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            if topic not in self._known_queues:
                try:
                    check_sendable_topic(topic)
                except ConfigError as error:
                    raise ConfigError(f"column {name!r}: {error}") from None
            rows = np.flatnonzero(codes == code).astype(np.uint32)
            found += self._by_queue(topic, batch, keys, rows)
        return found

    def _by_queue(
        self, topic: str, batch: Any, keys: Any | None, rows: _Numbers
    ) -> list[tuple[MessageQueue, _Numbers]]:
        # Asked once per task and topic, so that a topic which gets more queues meanwhile does not
        # move a key in the middle of a batch.
        queues = self._known_queues.get(topic)
        if queues is None:
            queues = self._known_queues[topic] = self._ask_queues(topic)
        targets = self._queue_indexes(topic, queues, batch, keys, rows)
        first = int(targets[0])
        if (targets == first).all():
            return [(queues[first], rows)]
        # Stable: within a target queue rows keep their order. Of small numbers NumPy sorts the
        # digits, in a quarter of the time.
        order = np.argsort(targets.astype(np.min_scalar_type(len(queues))), kind="stable")
        targets, rows = targets[order], rows[order]
        cuts = np.flatnonzero(targets[1:] != targets[:-1]) + 1
        parts = np.split(rows, cuts)
        indexes = targets[np.r_[0, cuts]].tolist()
        return [(queues[index], part) for index, part in zip(indexes, parts, strict=True)]

    def _queue_indexes(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        batch: Any,
        keys: Any | None,
        rows: _Numbers,
    ) -> _Numbers:
        """Return the index of the target queue of each of these rows."""
        if keys is not None:
            keys = _taken(keys, rows)
        if self._options.queue_column:
            # With order='queue', as behind `by_target_queue`, nobody asks for them.
            if keys is not None and self._options.order is Order.KEY:
                self._note_keys(topic, keys.unique().drop_null().to_pylist())
            given = _taken(batch.column(self._options.queue_column), rows)
            return self._given_indexes(given, len(queues))
        # Rows without a key: those of one source queue, or of one task, go to one queue, which
        # keeps their order.
        if self.source_order is not None:
            ids = _taken(batch.column("queue_id"), rows)
            keyless: _Numbers = ids.to_numpy(zero_copy_only=False) % len(queues)
        else:
            keyless = np.full(len(rows), self._partition % len(queues))
        if keys is None:
            return keyless
        if self._has_many_keys:
            targets = self._indexes_of(topic, queues, keys.to_pylist())
        else:
            coded = keys.dictionary_encode(null_encoding="encode")
            found = self._indexes_of(topic, queues, coded.dictionary.to_pylist())
            targets = found[coded.indices.to_numpy()]
            # Then the next batch, too, has as few rows of a key, and a dictionary costs more than
            # it saves.
            self._has_many_keys = len(found) > len(rows) // 2
        return np.where(targets < 0, keyless, targets) if keys.null_count else targets

    def _given_indexes(self, column: Any, count: int) -> _Numbers:
        name = self._options.queue_column
        if column.null_count:
            raise ConfigError(f"column {name!r} has nulls: every row needs the index of a queue")
        targets: _Numbers = column.to_numpy()
        if targets.min() < 0 or targets.max() >= count:
            wrong = targets[(targets < 0) | (targets >= count)][0]
            raise ConfigError(f"column {name!r} has {wrong}: the topic has queues 0..{count - 1}")
        return targets

    def _indexes_of(
        self, topic: str, queues: Sequence[MessageQueue], names: list[str | None]
    ) -> _Numbers:
        """Return the index of each key's queue; -1 for none."""
        if sum(map(len, self._index_of_key.values())) > _MAX_KNOWN_KEYS:
            self._index_of_key.clear()
        table = self._index_of_key.setdefault(topic, {None: -1})
        # Nearly always all are known: a look-up here is no call of a Python method.
        try:
            return np.fromiter(map(table.__getitem__, names), np.int32, len(names))
        except KeyError:
            missing = {name for name in names if name is not None and name not in table}
            table.update((name, self._index(name, len(queues))) for name in missing)
            self._note_keys(topic, missing)
        return np.fromiter(map(table.__getitem__, names), np.int32, len(names))

    def _note_keys(self, topic: str, new: Iterable[str]) -> None:
        """Keep keys for the report of the task, unless there are too many."""
        if self.keys is not None:
            # The same key of another topic has an order of its own.
            is_named = self._options.topic_column
            self.keys.update((f"{key} of {topic}" for key in new) if is_named else new)
            if len(self.keys) > MAX_REPORTED_KEYS:
                self.keys = None


def _taken(column: Any, rows: _Numbers) -> Any:
    """Return the values of these rows, which ascend."""
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def _shortened(value: Any) -> Any:
    """Return a value as an error shows it: what was refused may be refused for its length."""
    text = repr(value)
    return value if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)})"


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text_or_bytes(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_plain(kind: Any) -> bool:
    return not pa.types.is_nested(kind)


def _is_key(kind: Any) -> bool:
    # Types of which each value has the same text, and so the same queue, in every session and every
    # writer. Spark and Arrow write numbers with fractions and times in two ways, times by the
    # session's zone, too.
    return bool(
        _is_text_or_bytes(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_null(kind)
    )


def _is_words(kind: Any) -> bool:
    return _is_plain(kind.value_type if pa.types.is_list(kind) else kind)


def _is_text_map(kind: Any) -> bool:
    return bool(
        pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
    ) or pa.types.is_null(kind)


_KEY_KINDS: Final = "STRING, BINARY, an integer type, DECIMAL, BOOLEAN or DATE"
_MAKE_BODY: Final = (
    ": make one, for example with to_json(struct(...)), or name another by option body_column"
)
# Used where the DataFrame has them: name, check of the type, and what is expected.
_OWN_COLUMNS: Final = (
    ("tags", _is_words, "STRING or an ARRAY of words"),
    ("keys", _is_words, "STRING or an ARRAY of words"),
    ("properties", _is_text_map, "MAP<STRING, STRING>"),
)


def _words(name: str, column: Any) -> Any:
    """Return a text column; words of a list are joined by blanks, as in the KEYS property."""
    if not pa.types.is_list(column.type):
        return _as_text(name, column)
    texts = [
        None if words is None else " ".join(str(word) for word in words if word is not None)
        for words in _checked_text(name, column).to_pylist()
    ]
    return pa.array(texts, pa.string())


def key_texts(name: str, column: Any) -> Any:
    """Return the texts of keys.

    Raises: ConfigError: the column is of a type that has none, or has what is no text.
    """
    if not _is_key(column.type):
        raise ConfigError(f"column {name!r} is {column.type}, expected {_KEY_KINDS}: cast it")
    return _as_text(name, column)


def _as_text(name: str, column: Any) -> Any:
    if _is_text(column.type):
        column = _checked_text(name, column)
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _not_text(name, error) from error


def _checked_text(name: str, column: Any) -> Any:
    """Return a column whose texts are UTF-8.

    Raises: ConfigError: one is not.
    """
    # Looked at here: Spark casts bytes to STRING as they are, brokers store what they get, and no
    # member could read such a message.
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _not_text(name, error) from error
    return column


def _not_text(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"column {name!r} has what is no text in UTF-8: leave such rows out, or make the column a "
        f"text before the write, for example by hex(...) or base64(...): {error}"
    )


def _own_properties(column: Any) -> Any:
    """Return each row's properties as text, without those of the protocol and of the stamp."""
    # The stamp of an earlier sink, too: a copied message gets the stamp of this write.
    left_out = {*RESERVED_PROPERTIES, STAMP_SOURCE, STAMP_SEQUENCE, STAMP_ROW}
    texts = [
        props.encode({name: value for name, value in entries if name not in left_out and value})
        if entries
        else ""
        for entries in _checked_text("properties", column).to_pylist()
    ]
    return pa.array(texts, pa.string())
