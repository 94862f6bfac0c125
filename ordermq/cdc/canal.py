"""Canal's messages: a statement's rows, with every value as text; most often as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from ordermq import json_text
from ordermq.cdc.canal_entries import flat_messages
from ordermq.cdc.change import (
    Change,
    Operation,
    Row,
    malformed_is_refused,
    require_changes,
    require_field,
)
from ordermq.errors import ChangeRefused, ConfigError

_ROWS = {
    "INSERT": Operation.INSERT,
    "UPDATE": Operation.UPDATE,
    "DELETE": Operation.DELETE,
}
_NAMES = {operation: name for name, operation in _ROWS.items()} | {Operation.READ: "INSERT"}
# TiCDC's marks of progress in the same format.
_NO_CHANGES = frozenset({"TIDB_WATERMARK"})
# java.sql.Types, where a message has no `mysqlType` of a column.
_SQL_TYPES = {
    -7: "bit", -6: "tinyint", 5: "smallint", 4: "int", -5: "bigint", 6: "float", 7: "float",
    8: "double", 2: "decimal", 3: "decimal", 91: "date", 92: "time", 93: "datetime",
    -2: "binary", -3: "varbinary", -4: "longblob", 2004: "blob",
}  # fmt: skip
# The keys of the first three fields of a packet of entries; JSON begins otherwise.
_PACKET = (b"\x08", b"\x10", b"\x18")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?|[+-]?\.[0-9]+")
_ZERO_DATE = re.compile(r"0000-|\d{4}-00|\d{4}-\d\d-00")


class CanalCodec:
    """Messages of Canal and of TiCDC, flat ones or packets of entries; a `Codec` of changes.

    Both forms of `canal.mq.flatMessage` are decoded, and flat messages are encoded.

    Args:
        time_zone: of the texts of MySQL's `timestamp` columns, which are those of Canal's JVM.
            They are decoded to times with a zone then; to times without one by default.
        zero_dates_as_null: MySQL's `0000-00-00` is no date; by default it is refused.
    """

    def __init__(
        self, *, time_zone: tzinfo | None = None, zero_dates_as_null: bool = False
    ) -> None:
        if time_zone is not None and not isinstance(time_zone, tzinfo):
            raise ConfigError(f"time_zone={time_zone!r}: expected a tzinfo, as ZoneInfo('UTC')")
        self._zone = time_zone
        self._zero_as_null = zero_dates_as_null

    def decode(self, body: bytes, /) -> tuple[Change, ...]:
        """Return the changes of a message, in the order of its rows.

        Raises: ChangeRefused: it is no message of Canal, or a value does not fit its type.
        """
        with malformed_is_refused("no message of Canal"):
            if body[:1] in _PACKET:
                return tuple(
                    change for flat in flat_messages(body) for change in self._decode(flat)
                )
            return self._decode(_flat_message(body))

    def _decode(self, flat: dict[str, Any]) -> tuple[Change, ...]:
        kind = flat.get("type")
        if kind in _NO_CHANGES:
            return ()
        told: dict[str, Any] = {
            "database": require_field(flat, "database", str) or "",
            "table": require_field(flat, "table", str) or "",
            "committed_ms": require_field(flat, "es", int) or None,
            "transaction": require_field(flat, "gtid", str) or None,
        }
        if flat.get("isDdl"):
            operation = Operation.TRUNCATE if kind == "TRUNCATE" else Operation.DDL
            return (
                Change(operation=operation, ddl=require_field(flat, "sql", str) or None, **told),
            )
        if kind not in _ROWS:
            raise ChangeRefused(
                f"flat message of type {kind!r}: expected INSERT, UPDATE or DELETE. MySQL logs "
                "statements instead of rows unless binlog_format is ROW"
            )
        told["key_columns"] = tuple(require_field(flat, "pkNames", list) or ())
        if not all(isinstance(column, str) for column in told["key_columns"]):
            raise ChangeRefused(f"pkNames is {flat['pkNames']!r:.80}, expected names")
        return self._rows(flat, _ROWS[kind], told)

    def encode(self, value: Any, /) -> bytes:
        """Return the flat message of a change, or of several that only differ in their rows.

        Raises: ChangeRefused: several that differ otherwise; a value that MySQL has no type for.
        """
        changes = require_changes(value)
        if not changes:
            raise ChangeRefused("a flat message needs one change at least")
        first = changes[0]
        if any(
            (each.name, each.operation) != (first.name, first.operation) or not each.is_of_row
            for each in changes[1:]
        ):
            raise ChangeRefused("changes of one flat message: expected one table and operation")
        flat: dict[str, Any] = {
            "id": 0,
            "database": first.database,
            "table": first.table,
            "pkNames": list(first.key_columns) or None,
            "isDdl": not first.is_of_row,
            "type": self._name_of(first),
            "es": first.committed_ms or 0,
            "ts": first.committed_ms or 0,
            "sql": first.ddl or "",
            "data": None,
            "old": None,
        }
        if first.transaction is not None:
            flat["gtid"] = first.transaction
        if first.is_of_row:
            self._encode_rows(changes, flat)
        return json_text.dumps(flat)

    # Reading.

    def _rows(
        self, flat: dict[str, Any], operation: Operation, told: dict[str, Any]
    ) -> tuple[Change, ...]:
        rows, old = flat.get("data"), flat.get("old")
        if not isinstance(rows, list) or not rows:
            raise ChangeRefused(f"{operation} of {told['table']}: the message has no rows in data")
        if operation is not Operation.UPDATE or not old:
            old = [None] * len(rows)
        if not isinstance(old, list) or len(old) != len(rows):
            raise ChangeRefused(
                f"{operation} of {told['table']}: {len(rows)} rows in data, but other ones in old"
            )
        types = _column_types(flat)
        found = []
        for row, changed in zip(rows, old, strict=True):
            now = self._row(row, types, told["table"])
            if operation is Operation.DELETE:
                found.append(Change(operation=operation, before=now, **told))
                continue
            before = None if changed is None else now | self._row(changed, types, told["table"])
            found.append(Change(operation=operation, before=before, after=now, **told))
        return tuple(found)

    def _row(self, row: object, types: Mapping[str, str], table: str) -> dict[str, Any]:
        if not isinstance(row, dict):
            raise ChangeRefused(f"{table}: expected a row as an object, got {row!r:.100}")
        return {
            column: None
            if text is None
            else self._value(text, types.get(column, ""), table, column)
            for column, text in row.items()
        }

    def _value(self, text: object, full_type: str, table: str, column: str) -> Any:
        where = f"{table}.{column}: {text!r:.80} as {full_type or 'text'}"
        if not isinstance(text, str):
            raise ChangeRefused(f"{where}: expected a text; is it a flat message of Canal?")
        kind = re.split(r"[ (]", full_type, maxsplit=1)[0]
        try:
            if kind in _DATES:
                return self._date(text, kind, where)
            value = _DECODERS.get(kind, str)(text)
        except (ValueError, InvalidOperation, OverflowError) as error:
            raise ChangeRefused(f"{where}: {error}") from error
        if "unsigned" in full_type and not isinstance(value, str) and value < 0:
            raise ChangeRefused(f"{where}: a negative value; old versions of Canal write such ones")
        return value

    def _date(self, text: str, kind: str, where: str) -> date | datetime | None:
        if _ZERO_DATE.match(text):
            if self._zero_as_null:
                return None
            raise ChangeRefused(f"{where}: no date; zero_dates_as_null=True makes it None")
        if kind == "date":
            return date.fromisoformat(text[:10])
        moment = datetime.fromisoformat(text)
        if kind == "timestamp" and self._zone is not None and moment.tzinfo is None:
            return moment.replace(tzinfo=self._zone)
        return moment

    # Writing.

    def _name_of(self, change: Change) -> str:
        if change.operation is Operation.TRUNCATE:
            return "TRUNCATE"
        if change.operation is Operation.DDL:
            return "QUERY"
        if change.operation in _NAMES:
            return _NAMES[change.operation]
        raise ChangeRefused(f"Canal has no flat message of {change.operation}")

    def _encode_rows(self, changes: Sequence[Change], flat: dict[str, Any]) -> None:
        types: dict[str, str] = {}
        data, old = [], []
        for change in changes:
            if change.unavailable:
                raise ChangeRefused(
                    f"{change.name}: a flat message has whole rows, and the log lacks "
                    f"{sorted(change.unavailable)}: set REPLICA IDENTITY FULL on the table"
                )
            row = change.before if change.operation is Operation.DELETE else change.after
            before = change.before if change.operation is Operation.UPDATE else None
            if row is None:
                raise ChangeRefused(f"{change.operation} of {change.name}: the row is missing")
            data.append(self._encode_row(row, types))
            was = self._encode_row(before or {}, types)
            old.append({column: text for column, text in was.items() if text != data[-1][column]})
        flat["data"] = data
        flat["old"] = old if any(old) else None
        # A column of nulls has no type here, and needs none.
        flat["mysqlType"] = {column: types.get(column, "text") for row in data for column in row}
        flat["sqlType"] = {}

    def _encode_row(self, row: Row, types: dict[str, str]) -> dict[str, str | None]:
        encoded: dict[str, str | None] = {}
        for column, value in row.items():
            if value is None:
                encoded[column] = None
                continue
            types[column], encoded[column] = self._encode_value(column, value)
        return encoded

    def _encode_value(self, column: str, value: Any) -> tuple[str, str]:
        if isinstance(value, datetime) and value.tzinfo is not None:
            if self._zone is None:
                raise ChangeRefused(
                    f"column {column}: a time with a zone is a `timestamp` of MySQL, whose text is "
                    "in the zone of CanalCodec(time_zone=...)"
                )
            return "timestamp(6)", _moment(value.astimezone(self._zone).replace(tzinfo=None))
        for kind, name, text in _ENCODERS:
            if isinstance(value, kind):
                return name, text(value)
        raise ChangeRefused(f"column {column}: Canal has no type of {type(value).__name__}")


def _flat_message(body: bytes) -> dict[str, Any]:
    try:
        flat = json_text.loads(body)
    except json_text.JSONDecodeError as error:
        raise ChangeRefused(
            f"no flat message of Canal: {error}; canal.mq.flatMessage = true makes them JSON"
        ) from error
    if not isinstance(flat, dict) or "type" not in flat or "data" not in flat:
        raise ChangeRefused("no flat message of Canal: expected an object with type and data")
    return flat


def _column_types(flat: Mapping[str, Any]) -> dict[str, str]:
    types = {
        column: _SQL_TYPES[number]
        for column, number in (flat.get("sqlType") or {}).items()
        if number in _SQL_TYPES
    }
    return types | {
        column: str(text).lower() for column, text in (flat.get("mysqlType") or {}).items()
    }


def _duration(text: str) -> timedelta:
    # MySQL's `time` is a span of up to 838 hours, also a negative one.
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("expected [-]hh:mm:ss[.ffffff]")
    sign, hours, minutes, seconds, fraction = match.groups()
    span = timedelta(
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int((fraction or "").ljust(6, "0")),
    )
    return -span if sign else span


def _decimal(text: str) -> Decimal:
    # MySQL writes no exponents. As a text, 1e999999999 would fill the memory.
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError("expected digits, with a point at most")
    return Decimal(text)


def _octets(text: str) -> bytes:
    return text.encode("iso-8859-1")  # Canal makes a character of each byte


def _json(text: str) -> str:
    return "null" if text == "NULL" else text  # canal#1762


def _moment(value: datetime) -> str:
    return value.isoformat(" ", "microseconds")


def _span(value: timedelta) -> str:
    sign, rest = ("-", -value) if value < timedelta() else ("", value)
    seconds = rest.days * 86_400 + rest.seconds
    return (
        f"{sign}{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        f".{rest.microseconds:06}"
    )


def _document(value: Any) -> str:
    return json_text.dumps(value).decode()


_DATES = frozenset({"date", "datetime", "timestamp"})
_DECODERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "bit"), int
    ),
    **dict.fromkeys(("decimal", "numeric", "dec", "fixed"), _decimal),
    **dict.fromkeys(("float", "double", "real"), float),
    **dict.fromkeys(
        ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry"), _octets
    ),
    **dict.fromkeys(
        ("point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
         "geometrycollection"), _octets,
    ),
    "time": _duration,
    "json": _json,
}  # fmt: skip
# In this order: a bool is an int, a datetime a date.
_ENCODERS: tuple[tuple[type | tuple[type, ...], str, Callable[[Any], str]], ...] = (
    (bool, "tinyint(1)", lambda value: str(int(value))),
    (int, "bigint", str),
    (Decimal, "decimal(65,30)", lambda value: format(value, "f")),
    (float, "double", repr),
    (str, "longtext", str),
    (bytes, "longblob", lambda value: value.decode("iso-8859-1")),
    (datetime, "datetime(6)", _moment),
    (date, "date", date.isoformat),
    (time, "time(6)", lambda value: value.isoformat("microseconds")),
    (timedelta, "time(6)", _span),
    (UUID, "char(36)", str),
    ((dict, list), "json", _document),
)
