"""Changes of a database's rows, whatever system read them from its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from ordermq.errors import ChangeRefused, ConfigError, error_text
from ordermq.model.message import MessageView

_T = TypeVar("_T")
Row = Mapping[str, Any]
Place = tuple[int, ...]
POSITION_PROPERTY = "CDC_POSITION"  # of messages: not every format has one, or one per change


class Operation(StrEnum):
    """The kind of a change."""

    READ = "read"  # a row of a snapshot
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    DDL = "ddl"
    BEGIN = "begin"  # of a transaction
    COMMIT = "commit"


class Order(StrEnum):
    """The widest set of changes whose order a topic keeps."""

    KEY = "key"  # those of one row
    TABLE = "table"  # those of one table
    SOURCE = "source"  # all


_WRITES = frozenset({Operation.READ, Operation.INSERT, Operation.UPDATE})
_OF_ROWS = _WRITES | {Operation.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, with its values as Python's.

    Args:
        table: without its database; empty where the change names none.
        database: of MySQL; of PostgreSQL, the schema.
        key_columns: of the primary key, in its order; empty if the change does not name them.
        before: the row before; only some columns of it, or None, where the log has no more.
        after: the row after; None for a deleted one.
        unavailable: columns of `after` whose values the log does not have, as they did not change.
        position: grows with each change of its source; None if the change has none.
        source: what `position` is a position of.
        committed_ms: when the source committed the change, ms since 1970 in UTC.
        transaction: of the source.
        ddl: the statement, of DDL.
    """

    operation: Operation
    table: str = ""
    database: str = ""
    key_columns: tuple[str, ...] = ()
    before: Row | None = None
    after: Row | None = None
    unavailable: frozenset[str] = frozenset()
    position: Place | None = None
    source: str = ""
    committed_ms: int | None = None
    transaction: str | None = None
    ddl: str | None = None

    @property
    def name(self) -> str:
        """The table with its database: `shop.orders`."""
        return f"{self.database}.{self.table}" if self.database else self.table

    @property
    def is_of_row(self) -> bool:
        return self.operation in _OF_ROWS

    @property
    def writes_row(self) -> bool:
        return self.operation in _WRITES

    def key(self, columns: Sequence[str] = ()) -> tuple[Any, ...]:
        """Return the primary key of the row after the change; of a deleted row, the last one.

        Args: columns: of the key, where the change does not name them.
        Raises: ChangeRefused: no columns are known, or one has no value.
        """
        return self._key(self.after if self.writes_row else self.before, columns)

    def old_key(self, columns: Sequence[str] = ()) -> tuple[Any, ...]:
        """Return the primary key of the row before the change; the key after it, if the log does
        not tell the row before: then it is the same.

        Raises: ChangeRefused: as `key`.
        """
        columns = columns or self.key_columns
        if self.before is None or any(column not in self.before for column in columns):
            return self.key(columns)
        return self._key(self.before, columns)

    def changes_key(self, columns: Sequence[str] = ()) -> bool:
        """Return whether an update gave its row another primary key."""
        return self.operation is Operation.UPDATE and self.old_key(columns) != self.key(columns)

    def split(self, columns: Sequence[str] = ()) -> tuple[Change, ...]:
        """Return this change; one that gave its row another key as the delete of the old row and
        the insert of the new one, in this order.

        Raises: ChangeRefused: the new row lacks values, which only the old row has.
        """
        if not self.changes_key(columns):
            return (self,)
        if self.unavailable:
            raise ChangeRefused(
                f"{self.name}: the key changed from {self.old_key(columns)} to "
                f"{self.key(columns)}, and the log lacks {sorted(self.unavailable)}: set REPLICA "
                "IDENTITY FULL on the source's table"
            )
        return (
            replace(self, operation=Operation.DELETE, after=None),
            replace(self, operation=Operation.INSERT, before=None),
        )

    def sharding_key(self, order: Order = Order.KEY, columns: Sequence[str] = ()) -> str:
        """Return the sharding key under which a topic keeps this order.

        Raises: ChangeRefused: a change of no row, by key; or a key that changed: `split` it first.
        """
        if order is Order.SOURCE:
            return self.source or "source"
        if order is Order.TABLE:
            return self.name
        if not self.is_of_row:
            raise ChangeRefused(
                f"{self.operation} of {self.name or 'the database'}: it has no key, so a topic "
                "ordered by key has no place for it; order by table or by source"
            )
        if self.changes_key(columns):
            raise ChangeRefused(f"{self.name}: its key changed; send the parts of split()")
        return f"{self.name}:{','.join(map(_text_of_key, self.key(columns)))}"

    def _key(self, row: Row | None, columns: Sequence[str]) -> tuple[Any, ...]:
        columns = columns or self.key_columns
        if not columns:
            raise ChangeRefused(
                f"{self.operation} of {self.name}: no primary key is known; give the table one, or "
                "name the columns to the codec"
            )
        if row is None:
            raise ChangeRefused(f"{self.operation} of {self.name}: the row is missing")
        values = tuple(row.get(column) for column in columns)
        if None in values:
            missing = [each for each, value in zip(columns, values, strict=True) if value is None]
            raise ChangeRefused(
                f"{self.operation} of {self.name}: no value of the key's {', '.join(missing)} in "
                f"columns {sorted(row)}"
            )
        return values


class Position(NamedTuple):
    """A place in the log of a source, as a reader of the log writes it into its messages.

    A reader that was killed, or whose send failed, goes back and sends again from there. By the
    place a repeat is told apart from what is new. By the one before, so is a message that was
    stored although an earlier one of its queue was not: both come again, in order.
    """

    source: str
    place: Place  # empty: unknown
    previous: Place  # of the reader's message before in this queue; empty: its first one

    @classmethod
    def of_message(cls, message: MessageView) -> Position:
        """Return the position of a message; of one of another program, an empty one.

        Raises: ChangeRefused: the property is none.
        """
        text = message.get_property(POSITION_PROPERTY)
        if text is None:
            return _NOWHERE
        places, _, source = text.partition("@")
        place, _, previous = places.partition(">")
        try:
            return cls(source, _place(place), _place(previous) if previous else ())
        except ValueError as error:
            raise ChangeRefused(f"property {POSITION_PROPERTY}={text!r}: {error}") from error

    def to_property(self) -> str:
        """Return the text for the property of a message."""
        previous = f">{_text_of_place(self.previous)}" if self.previous else ""
        return f"{_text_of_place(self.place)}{previous}@{self.source}"


_NOWHERE = Position("", (), ())


def _place(text: str) -> Place:
    return tuple(map(int, text.split(",")))


def _text_of_place(place: Place) -> str:
    return ",".join(map(str, place))


def require_order(order: str) -> Order:
    """Return the member of that name.

    Raises: ConfigError: there is none.
    """
    try:
        return Order(order)
    except ValueError:
        names = ", ".join(repr(str(each)) for each in Order)
        raise ConfigError(f"order={order!r}: expected one of {names}") from None


def require_changes(value: object) -> tuple[Change, ...]:
    """Return one or several changes as a tuple.

    Raises: ChangeRefused: it is something else.
    """
    changes = (value,) if isinstance(value, Change) else value
    if not isinstance(changes, Iterable):
        raise ChangeRefused(f"{value!r}: expected a Change, or several")
    found = tuple(changes)
    if not all(isinstance(each, Change) for each in found):
        raise ChangeRefused(f"{value!r}: expected a Change, or several")
    return found


@contextmanager
def malformed_is_refused(what: str) -> Iterator[None]:
    """Refuse a message whose parts are not of the format's types, wherever that shows.

    Raises: ChangeRefused: names the message as `what`.
    """
    try:
        yield
    except _MALFORMED as error:
        raise ChangeRefused(f"{what}: {error_text(error)}") from error


_MALFORMED = (AttributeError, TypeError, LookupError, ValueError, ArithmeticError, RecursionError)


def require_field(told: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    """Return a field of a message, None where it is missing or null.

    Raises: ChangeRefused: it has another type.
    """
    value = told.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ChangeRefused(f"{name} is {value!r:.80}, expected {kind.__name__}")


def _text_of_key(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    # Properties of messages end with these two.
    return str(value).replace("\x01", "\\1").replace("\x02", "\\2")
