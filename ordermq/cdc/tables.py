"""Copies of tables: which value a column takes, and the statements that write rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Executable,
    Table,
    bindparam,
    delete,
    update,
)
from sqlalchemy import types as of
from sqlalchemy.dialects import postgresql, sqlite

from ordermq.cdc.change import Change
from ordermq.cdc.values import (
    as_binary,
    as_bool,
    as_day,
    as_decimal,
    as_document,
    as_float,
    as_int,
    as_interval,
    as_text,
    as_time,
    as_unzoned,
    as_uuid,
    as_zoned,
    expect,
)
from ordermq.errors import ChangeRefused, ConfigError

INSERTS: dict[str, Callable[[Table], Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


def require_databases(engine: Engine) -> None:
    """Check that there is an upsert for the engine's database.

    Raises: ConfigError: there is none.
    """
    if engine.dialect.name not in INSERTS:
        raise ConfigError(f"{engine.dialect.name}: expected an engine of SQLite or PostgreSQL")


class CopiedTable:
    """A table that holds a copy of another.

    Args: table: with a primary key; its columns have the source's names.
    Raises: ConfigError: it has no primary key, or a column that cannot hold what it is to hold.
    """

    def __init__(self, table: Table, engine: Engine) -> None:
        self.table = table
        self.key_columns = tuple(column.name for column in table.primary_key.columns)
        if not self.key_columns:
            raise ConfigError(f"table {table.fullname}: a copy needs a primary key")
        self._columns = {column.name: column for column in table.columns}
        self._adapt = {
            name: _adapter(column, engine.dialect.name) for name, column in self._columns.items()
        }
        self._insert = INSERTS[engine.dialect.name]
        self._upserts: dict[tuple[str, ...], Executable] = {}
        self._updates: dict[tuple[str, ...], Executable] = {}
        self._delete = delete(table).where(*self._is_key())

    def key_of(self, change: Change) -> tuple[Any, ...]:
        """Return the key as the copy has it.

        Raises: ChangeRefused: a value is missing, or does not fit its column.
        """
        values = change.key(self.key_columns)
        return tuple(
            self._value(name, value) for name, value in zip(self.key_columns, values, strict=True)
        )

    def values_of(self, change: Change) -> dict[str, Any]:
        """Return the row after the change as the copy takes it.

        Raises: ChangeRefused: the copy lacks a column, or a value does not fit one.
        """
        row = change.after or {}
        unknown = row.keys() - self._columns.keys()
        if unknown:
            raise ChangeRefused(
                f"{change.name}: the copy {self.table.fullname} lacks {sorted(unknown)}: add the "
                "columns to it, and start the process again"
            )
        return {name: self._value(name, value) for name, value in row.items()}

    def delete(self, connection: Connection, keys: Sequence[tuple[Any, ...]]) -> None:
        """Delete rows by their keys; one that is not there is gone already."""
        if keys:
            connection.execute(self._delete, [_named("k", key) for key in keys])

    def upsert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, whether they are there or not."""
        by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            by_columns.setdefault(tuple(row), []).append(_named("v", tuple(row.values())))
        for columns, values in by_columns.items():
            connection.execute(self._upsert_of(columns), values)

    def update(
        self, connection: Connection, key: tuple[Any, ...], values: Mapping[str, Any]
    ) -> None:
        """Change some columns of a row.

        Raises: ChangeRefused: it is not there, so the other columns are unknown.
        """
        columns = tuple(values)
        statement = self._updates.get(columns)
        if statement is None:
            statement = update(self.table).where(*self._is_key()).values(self._bound(columns))
            self._updates[columns] = statement
        named = _named("v", tuple(values.values())) | _named("k", key)
        if connection.execute(statement, named).rowcount != 1:
            raise self.missing(key)

    def missing(self, key: tuple[Any, ...]) -> ChangeRefused:
        """Return the error of a change of some columns of a row that is not there."""
        return ChangeRefused(
            f"update of {key} in {self.table.fullname}: the row is not there, and the message does "
            "not have all of it: begin with a snapshot, or set REPLICA IDENTITY FULL"
        )

    def _value(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._adapt[name](value)
        except (TypeError, ValueError, ArithmeticError) as error:
            column = self._columns[name]
            raise ChangeRefused(
                f"{self.table.fullname}.{name}: {value!r:.80} does not fit {column.type!r}: {error}"
            ) from error

    def _is_key(self) -> list[Any]:
        return [
            self._columns[name] == bindparam(f"k{number}", type_=self._columns[name].type)
            for number, name in enumerate(self.key_columns)
        ]

    def _bound(self, columns: Sequence[str]) -> dict[Column[Any], Any]:
        # By number: a column may have a name that no driver takes for a parameter.
        return {
            self._columns[name]: bindparam(f"v{number}", type_=_bind_type(self._columns[name]))
            for number, name in enumerate(columns)
        }

    def _upsert_of(self, columns: tuple[str, ...]) -> Executable:
        statement = self._upserts.get(columns)
        if statement is None:
            insert = self._insert(self.table).values(self._bound(columns))
            kept = {name: insert.excluded[name] for name in columns if name not in self.key_columns}
            keys = [self._columns[name] for name in self.key_columns]
            statement = (
                insert.on_conflict_do_update(index_elements=keys, set_=kept)
                if kept
                else insert.on_conflict_do_nothing(index_elements=keys)
            )
            self._upserts[columns] = statement
        return statement


def _named(letter: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{letter}{number}": value for number, value in enumerate(values)}


def _bind_type(column: Column[Any]) -> Any:
    # By default None in a JSON column is the document `null`.
    if isinstance(column.type, JSON):
        return type(column.type)(none_as_null=True)
    return column.type


def _adapter(column: Column[Any], dialect: str) -> Callable[[Any], Any]:
    kind = column.type
    if isinstance(kind, of.Numeric) and not isinstance(kind, of.Float) and dialect == "sqlite":
        raise ConfigError(
            f"column {column.table.fullname}.{column.name}: SQLite keeps decimals as floats; use "
            "Text, which keeps every digit"
        )
    if isinstance(kind, of.DateTime):
        return as_zoned if kind.timezone else as_unzoned
    for types, adapt in _ADAPTERS:
        if isinstance(kind, types):
            return adapt
    return lambda value: value


def _document(value: Any) -> Any:
    value = as_document(value)
    return JSON.NULL if value is None else value


_ADAPTERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (of.Boolean, as_bool),
    (of.Integer, as_int),
    (of.Float, as_float),
    (of.Numeric, as_decimal),
    (of.Enum, lambda value: expect(value, str)),
    (of.Uuid, as_uuid),
    (of.String, as_text),
    (of.LargeBinary, as_binary),
    (of.Date, as_day),
    (of.Time, as_time),
    (of.Interval, as_interval),
    (of.JSON, _document),
)
