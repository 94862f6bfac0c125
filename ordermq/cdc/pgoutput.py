"""Messages of `pgoutput`, PostgreSQL's own plugin of logical decoding, as changes.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from psycopg import DataError
from psycopg.adapt import Transformer
from psycopg.pq import Format

from ordermq.cdc.change import Change, Operation
from ordermq.errors import ChangeRefused, ProtocolError

POSTGRESQL_EPOCH_MS = 946_684_800_000  # 2000-01-01, in ms since 1970
# Those whose texts Python's types hold wholly. Others stay texts: of a JSON document, an interval
# with months or an array of anything Python would keep less.
_LOADED = frozenset({16, 17, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1700, 2950})
_IS_KEY = 1


class Relation(NamedTuple):
    """A table, as of the moment in the log.

    Attributes:
        identity: names of the columns that the log has of a row before its change.
        key_columns: of the primary key.
    """

    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]  # name and type
    identity: frozenset[str]
    key_columns: tuple[str, ...]


class Commit(NamedTuple):
    """The end of a transaction; the log continues at `end`."""

    end: int


class Decoder:
    """Decoder of one stream of the log, from its begin.

    Args:
        key_of: returns the columns of a table's primary key by its OID.
        source: of the changes' positions.
    """

    def __init__(self, key_of: Callable[[int], tuple[str, ...]], source: str) -> None:
        self._key_of = key_of
        self._source = source
        self._relations: dict[int, Relation] = {}
        self._values = ValueReader()
        self._commit = 0
        self._committed_ms = 0
        self._transaction = ""
        self._index = 0
        self.is_inside = False  # of a transaction

    def decode(self, data: bytes) -> Iterator[Change | Commit]:
        """Yield the changes of a message; of an update of a key its two parts.

        Raises: ChangeRefused: a row without what is needed; ProtocolError: an unknown message.
        """
        kind, reader = data[:1], _Reader(data)
        if kind == b"B":
            self._commit, at_us, transaction = reader.take(">QqI")
            self._committed_ms = at_us // 1_000 + POSTGRESQL_EPOCH_MS
            self._transaction, self._index, self.is_inside = str(transaction), 0, True
        elif kind == b"C":
            _, _, end, _ = reader.take(">BQQq")
            self.is_inside = False
            yield Commit(end)
        elif kind == b"R":
            oid, relation = self._relation(reader)
            self._relations[oid] = relation
        elif kind in (b"I", b"U", b"D"):
            for part in self._row_change(kind, reader).split():
                yield self._placed(part)
        elif kind == b"T":
            count, _ = reader.take(">IB")
            for _ in range(count):
                (oid,) = reader.take(">I")
                relation = self._relations[oid]
                yield self._placed(self._change(Operation.TRUNCATE, relation))
        elif kind not in (b"O", b"Y", b"M"):
            raise ProtocolError(f"message {kind!r} of pgoutput is unknown; it is of version 1")

    def _placed(self, change: Change) -> Change:
        place = (self._commit, self._index)
        self._index += 1
        return replace(
            change,
            position=place,
            source=self._source,
            committed_ms=self._committed_ms,
            transaction=self._transaction,
        )

    def _relation(self, reader: _Reader) -> tuple[int, Relation]:
        (oid,) = reader.take(">I")
        schema, name = reader.text(), reader.text()
        _, count = reader.take(">BH")
        columns, identity = [], set()
        for _ in range(count):
            (flags,) = reader.take(">B")
            column = reader.text()
            kind, _ = reader.take(">Ii")
            columns.append((column, kind))
            if flags & _IS_KEY:
                identity.add(column)
        found = Relation(schema, name, tuple(columns), frozenset(identity), self._key_of(oid))
        return oid, found

    def _row_change(self, kind: bytes, reader: _Reader) -> Change:
        (oid,) = reader.take(">I")
        relation = self._relations[oid]
        before: dict[str, Any] | None = None
        after: dict[str, Any] | None = None
        unavailable: frozenset[str] = frozenset()
        while not reader.is_at_end:
            (part,) = reader.take("c")
            row, missing = self._row(reader, relation)
            if part == b"N":
                # What did not change is in the old row, if the log has all of that.
                old = before or {}
                kept = {name: old[name] for name in missing if name in old}
                after = row | kept
                unavailable = missing - kept.keys()
            elif part == b"K":
                before = {name: row[name] for name in relation.identity}
            else:
                before = row
        operation = _OPERATIONS[kind]
        change = self._change(
            operation, relation, before=before, after=after, unavailable=unavailable
        )
        change.key()  # refused here, if the table has none
        return change

    def _row(self, reader: _Reader, relation: Relation) -> tuple[dict[str, Any], frozenset[str]]:
        (count,) = reader.take(">H")
        row: dict[str, Any] = {}
        missing = set()
        for number in range(count):
            name, kind = relation.columns[number]
            (form,) = reader.take("c")
            if form == b"n":
                row[name] = None
            elif form == b"u":
                missing.add(name)
            elif form == b"t":
                (size,) = reader.take(">I")
                row[name] = self._values.read(kind, reader.octets(size), relation, name)
            else:
                raise ProtocolError(f"a value of pgoutput in form {form!r}: expected text")
        return row, frozenset(missing)

    def _change(self, operation: Operation, relation: Relation, **rows: Any) -> Change:
        return Change(
            operation=operation,
            table=relation.name,
            database=relation.schema,
            key_columns=relation.key_columns,
            **rows,
        )


class ValueReader:
    """Python's values of PostgreSQL's texts, where these keep everything; else the texts."""

    def __init__(self) -> None:
        self._transformer = Transformer()

    def read(self, kind: int, octets: bytes, relation: Relation, column: str) -> Any:
        """Return the value of a text.

        Raises: ChangeRefused: Python has none, as for the date `infinity`.
        """
        if kind not in _LOADED:
            return octets.decode()
        try:
            return self._transformer.get_loader(kind, Format.TEXT).load(octets)
        except (DataError, ValueError) as error:
            raise ChangeRefused(
                f"{relation.schema}.{relation.name}.{column}: {octets.decode()!r}: {error}"
            ) from error


class _Reader:
    """Reads fields of a message one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, form: str) -> tuple[Any, ...]:
        fields = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return fields

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def octets(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


_OPERATIONS: Mapping[bytes, Operation] = {
    b"I": Operation.INSERT,
    b"U": Operation.UPDATE,
    b"D": Operation.DELETE,
}
