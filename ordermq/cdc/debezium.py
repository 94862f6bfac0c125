"""Debezium's JSON: an envelope of the row before and after, with or without its schema.

The types are those of Debezium's documentation, by the names of their schemas; JSON alone does not
tell a decimal's bytes from a text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from ordermq import json_text
from ordermq.cdc.change import (
    Change,
    Operation,
    Row,
    malformed_is_refused,
    require_changes,
    require_field,
)
from ordermq.errors import ChangeRefused, ConfigError

_OPERATIONS = {
    "r": Operation.READ,
    "c": Operation.INSERT,
    "u": Operation.UPDATE,
    "d": Operation.DELETE,
    "t": Operation.TRUNCATE,
}
_LETTERS = {operation: letter for letter, operation in _OPERATIONS.items()}
_TRANSACTIONS = {"BEGIN": Operation.BEGIN, "END": Operation.COMMIT}
_TOMBSTONES = (b"", b"null", b"default")
UNAVAILABLE = "__debezium_unavailable_value"
_SOURCE_TYPE = "__debezium.source.column.type"
_MOST_SCALE = 16_383  # PostgreSQL's; as a text, a scale of a billion would fill the memory
_EPOCH = datetime(1970, 1, 1)
_DAY = date(1970, 1, 1)

_Schema = Mapping[str, Any]
_Hint = str | tuple[str, Mapping[str, str]]


class DebeziumCodec:
    """Change events of Debezium as JSON, with their schemas or without; a `Codec` of changes.

    Args:
        primary_keys: columns by table (`orders` or `shop.orders`): an event does not name them.
            `ApplyChanges` takes them from the table that it writes to.
        types: of events without schemas: the schema's name by column by table, as in
            `{"shop.orders": {"amount": ("org.apache.kafka.connect.data.Decimal", {"scale": "2"}),
            "at": "io.debezium.time.MicroTimestamp"}}`. Other columns keep JSON's types.
        with_schemas: encode with schemas.
    """

    def __init__(
        self,
        *,
        primary_keys: Mapping[str, Sequence[str]] | None = None,
        types: Mapping[str, Mapping[str, _Hint]] | None = None,
        with_schemas: bool = True,
    ) -> None:
        self._keys = {name: tuple(columns) for name, columns in (primary_keys or {}).items()}
        self._types = {
            table: {column: _schema_of_hint(table, column, hint) for column, hint in hints.items()}
            for table, hints in (types or {}).items()
        }
        self._with_schemas = with_schemas

    def decode(self, body: bytes, /) -> tuple[Change, ...]:
        """Return the changes of an event: none of a tombstone and of a heartbeat, BEGIN or COMMIT
        of a transaction topic's, DDL of a schema topic's.

        Raises: ChangeRefused: it is no event of Debezium, or a value does not fit its type.
        """
        if bytes(body) in _TOMBSTONES:
            return ()
        with malformed_is_refused("no event of Debezium"):
            return self._decode(body)

    def _decode(self, body: bytes) -> tuple[Change, ...]:
        try:
            event = json_text.loads(body)
        except json_text.JSONDecodeError as error:
            raise ChangeRefused(
                f"no event of Debezium: {error}; its converter must be JsonConverter"
            ) from error
        schema: _Schema | None = None
        if isinstance(event, dict) and event.keys() == {"schema", "payload"}:
            schema, event = event["schema"], event["payload"]
            if event is None:
                return ()  # a tombstone, too
        if not isinstance(event, dict):
            raise ChangeRefused("no event of Debezium: expected an object")
        if event.get("op") == "m":
            return ()  # a message that a program wrote into PostgreSQL's log
        if "op" in event:
            return (self._of_row(event, schema),)
        if event.get("status") in _TRANSACTIONS:
            return (
                Change(
                    operation=_TRANSACTIONS[event["status"]],
                    transaction=require_field(event, "id", str),
                    committed_ms=require_field(event, "ts_ms", int),
                ),
            )
        if "ddl" in event or "tableChanges" in event:
            return (_of_schema_topic(event),)
        if event.keys() <= {"ts_ms", "ts_us", "ts_ns"}:
            return ()  # a heartbeat
        raise ChangeRefused(
            f"no event of Debezium: no op among {sorted(event)[:10]}. Leave out the transform "
            "ExtractNewRecordState: without op and source, order and deletes are lost"
        )

    def encode(self, value: Any, /) -> bytes:
        """Return the event of one change.

        Raises: ChangeRefused: it is not one; a value of a type that has no schema here.
        """
        changes = require_changes(value)
        if len(changes) != 1:
            raise ChangeRefused(f"an event of Debezium is of one change, got {len(changes)}")
        change = changes[0]
        if change.operation not in _LETTERS:
            raise ChangeRefused(f"Debezium has no row event of {change.operation}")
        fields: dict[str, _Schema] = {}
        before = _encode_row(change.before, fields, frozenset())
        after = _encode_row(change.after, fields, change.unavailable)
        payload = {
            "before": before,
            "after": after,
            "source": _source(change),
            "op": _LETTERS[change.operation],
            "ts_ms": change.committed_ms,
            "transaction": None if change.transaction is None else {"id": change.transaction},
        }
        if not self._with_schemas:
            return json_text.dumps(payload)
        row = {"type": "struct", "optional": True, "fields": list(fields.values())}
        schema = {
            "type": "struct",
            "name": f"{change.name}.Envelope",
            "fields": [{**row, "field": "before"}, {**row, "field": "after"}],
        }
        return json_text.dumps({"schema": schema, "payload": payload})

    def _of_row(self, event: dict[str, Any], schema: _Schema | None) -> Change:
        operation = _OPERATIONS.get(event["op"])
        if operation is None:
            raise ChangeRefused(f"event of Debezium: op {event['op']!r} is none of c, u, d, r, t")
        source = event.get("source")
        if not isinstance(source, dict):
            raise ChangeRefused("event of Debezium: no source, which names the table")
        table = (
            require_field(source, "table", str) or require_field(source, "collection", str) or ""
        )
        if operation is not Operation.TRUNCATE and not table:
            raise ChangeRefused(f"event of Debezium: {operation}, and source has no table")
        database = require_field(source, "schema", str) or require_field(source, "db", str) or ""
        name = f"{database}.{table}"
        types = _column_schemas(schema) or self._types.get(name) or self._types.get(table) or {}
        unavailable: set[str] = set()
        after = _decode_row(event.get("after"), types, name, unavailable)
        if operation in (Operation.READ, Operation.INSERT, Operation.UPDATE) and after is None:
            raise ChangeRefused(f"{operation} of {name}: the row after it is missing")
        before = _decode_row(event.get("before"), types, name, set())
        if operation is Operation.DELETE and before is None:
            raise ChangeRefused(
                f"delete of {name}: the row before it is missing; PostgreSQL's table needs a "
                "primary key or REPLICA IDENTITY FULL"
            )
        return Change(
            operation=operation,
            table=table,
            database=database,
            key_columns=self._keys.get(name) or self._keys.get(table) or (),
            before=before,
            after=after,
            unavailable=frozenset(unavailable),
            position=_position(source, operation),
            source=_name_of_source(source),
            committed_ms=require_field(source, "ts_ms", int) or require_field(event, "ts_ms", int),
            transaction=require_field(event.get("transaction") or {}, "id", str),
        )


def _of_schema_topic(event: dict[str, Any]) -> Change:
    source = event.get("source") or {}
    return Change(
        operation=Operation.DDL,
        table=require_field(source, "table", str) or "",
        database=require_field(event, "schemaName", str)
        or require_field(event, "databaseName", str)
        or "",
        position=_position(source, Operation.DDL),
        source=_name_of_source(source),
        committed_ms=require_field(event, "ts_ms", int) or require_field(source, "ts_ms", int),
        ddl=require_field(event, "ddl", str),
    )


# The source.


def _name_of_source(source: Mapping[str, Any]) -> str:
    parts = (source.get("connector"), source.get("name"), source.get("server_id"))
    return "/".join(str(each) for each in parts if each)


def _position(source: Mapping[str, Any], operation: Operation) -> tuple[int, ...] | None:
    """Return the place in the source's log; None for a row of a snapshot, which has none."""
    if source.get("snapshot") not in (None, False, "false"):
        return None
    # A changed key is a delete and an insert at the same place, in this order.
    phase = int(operation is not Operation.DELETE)
    if source.get("lsn") is not None and source.get("sequence"):
        # (last commit before, place): events come in the order of commits.
        commit, lsn = json_text.loads(source["sequence"])
        return (int(commit or 0), int(lsn or source["lsn"]), phase)
    if source.get("file") and source.get("pos") is not None:
        number = re.search(r"\.(\d+)$", source["file"])
        if number is not None:
            return (int(number[1]), int(source["pos"]), int(source.get("row") or 0), phase)
    return None


def _source(change: Change) -> dict[str, Any]:
    source = {
        "connector": change.source.partition("/")[0],
        "name": change.source.partition("/")[2],
        "ts_ms": change.committed_ms,
        "snapshot": "true" if change.operation is Operation.READ else "false",
        "schema": change.database,
        "table": change.table,
    }
    if change.position is not None:
        source["lsn"] = change.position[-1]
        source["sequence"] = json_text.dumps([str(each) for each in change.position[:2]]).decode()
    return source


# Rows, read.


def _column_schemas(schema: _Schema | None) -> dict[str, _Schema]:
    """Return the schemas of a table's columns, from that of an envelope."""
    for part in (schema or {}).get("fields") or ():
        if part.get("field") in ("after", "before"):
            return {each["field"]: each for each in part.get("fields") or ()}
    return {}


def _schema_of_hint(table: str, column: str, hint: _Hint) -> _Schema:
    name, parameters = (hint, {}) if isinstance(hint, str) else hint
    if name not in _SEMANTIC and name not in _CHECKED and name != "bytes":
        raise ConfigError(
            f"types of {table}.{column}: {name!r} is no schema of Debezium, such as "
            "'io.debezium.time.MicroTimestamp', and none of bytes, string, int64, double, boolean"
        )
    if name in _SEMANTIC:
        return {"type": "", "name": name, "parameters": parameters}
    return {"type": name, "parameters": parameters}


def _decode_row(
    row: object, types: Mapping[str, _Schema], table: str, unavailable: set[str]
) -> dict[str, Any] | None:
    if row is None:
        return None
    if not isinstance(row, dict):
        raise ChangeRefused(f"{table}: expected a row as an object, got {row!r:.100}")
    decoded = {}
    for column, value in row.items():
        if _is_unavailable(value):
            unavailable.add(column)
            continue
        try:
            decoded[column] = _decode(value, types.get(column))
        except (ValueError, TypeError, KeyError, InvalidOperation, OverflowError) as error:
            kind = types[column].get("name") or types[column].get("type")
            raise ChangeRefused(f"{table}.{column}: {value!r:.80} as {kind}: {error}") from error
    return decoded


def _is_unavailable(value: object) -> bool:
    # Debezium gives the placeholder the type of the column, an array of integers its bytes.
    if isinstance(value, str):
        return value in _UNAVAILABLE_TEXTS
    if isinstance(value, list):
        return value in _UNAVAILABLE_LISTS
    return isinstance(value, dict) and (
        value == {UNAVAILABLE: UNAVAILABLE}  # hstore
        or value.get("wkb") in _UNAVAILABLE_PLACES
        or value.get("x") == value.get("y") == -99999999  # a point
    )


_UNAVAILABLE_BYTES = base64.b64encode(UNAVAILABLE.encode()).decode()
_UNAVAILABLE_TEXTS = {
    UNAVAILABLE,
    _UNAVAILABLE_BYTES,
    json_text.dumps({UNAVAILABLE: UNAVAILABLE}).decode(),  # hstore.handling.mode=json
}
_UNAVAILABLE_UUID = UUID(
    bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3
)
_UNAVAILABLE_LISTS: list[list[object]] = [
    [UNAVAILABLE],
    [_UNAVAILABLE_BYTES],
    list(UNAVAILABLE.encode()),
    [str(_UNAVAILABLE_UUID)],
]
# POINT(-99999999 -99999999) as geometry, POINT(179.999999 89.999999) as geography.
_UNAVAILABLE_PLACES = {
    base64.b64encode(bytes.fromhex(place)).decode()
    for place in (
        "0101000020E6100000000000FC83D797C1000000FC83D797C1",
        "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
    )
}


def _decode(value: Any, schema: _Schema | None) -> Any:
    if value is None or schema is None:
        return value
    semantic = _SEMANTIC.get(schema.get("name") or "")
    parameters = schema.get("parameters") or {}
    if semantic is not None:
        return semantic(value, parameters)
    kind = schema.get("type")
    if kind == "bytes":
        return _octets(value)
    if kind == "array":
        return [_decode(each, schema.get("items")) for each in _of(value, list)]
    if kind == "struct":
        fields = {each["field"]: each for each in schema.get("fields") or ()}
        return {name: _decode(part, fields.get(name)) for name, part in _of(value, dict).items()}
    if kind in _CHECKED:
        value = _CHECKED[kind](value)
        if kind == "int64" and value < 0 and "UNSIGNED" in parameters.get(_SOURCE_TYPE, ""):
            value += 1 << 64  # bigint.unsigned.handling.mode=long wraps around
    return value


def _of(value: Any, kind: type | tuple[type, ...]) -> Any:
    # A bool is an int to Python, and no number of a database.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"got {type(value).__name__}")
    return value


def _octets(value: Any) -> bytes:
    try:
        return base64.b64decode(_of(value, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def _float(value: Any) -> float:
    return float(_of(value, (int, float, str)))  # "NaN" and "Infinity" are texts


def _decimal(value: Any, scale: int) -> Decimal:
    if abs(scale) > _MOST_SCALE:
        raise ValueError(f"scale {scale}: no database has more than {_MOST_SCALE} digits")
    unscaled = int.from_bytes(_octets(value), "big", signed=True)
    # From its parts: `scaleb` would round to the context's precision.
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    return Decimal((sign, digits, -scale))


def _scaled_decimal(value: Any, parameters: Mapping[str, str]) -> Decimal:
    return _decimal(value, int(parameters["scale"]))


def _variable_decimal(value: Any, _: Mapping[str, str]) -> Decimal:
    return _decimal(_of(value, dict)["value"], _of(value["scale"], int))


def _day(value: Any, _: Mapping[str, str]) -> date:
    return _DAY + timedelta(days=_of(value, int))


def _moments(per_second: int) -> Callable[[Any, Mapping[str, str]], datetime]:
    return lambda value, _: _EPOCH + _duration(_of(value, int), per_second)


def _times(per_second: int) -> Callable[[Any, Mapping[str, str]], Any]:
    def decode(value: Any, _: Mapping[str, str]) -> Any:
        span = _duration(_of(value, int), per_second)
        # MySQL's `time` is a span of up to 838 hours, also a negative one; PostgreSQL has 24:00.
        if timedelta() <= span < timedelta(days=1):
            return (_EPOCH + span).time()
        return span

    return decode


def _duration(value: int, per_second: int) -> timedelta:
    if per_second <= 1_000_000:
        return timedelta(microseconds=value * (1_000_000 // per_second))
    whole, rest = divmod(value, per_second // 1_000_000)
    if rest:
        raise ValueError("nanoseconds, which Python's times do not have")
    return timedelta(microseconds=whole)


def _zoned(value: Any, _: Mapping[str, str]) -> datetime:
    moment = datetime.fromisoformat(_microseconds(_of(value, str)))
    if moment.tzinfo is None:
        raise ValueError("no zone")
    return moment


def _zoned_time(value: Any, _: Mapping[str, str]) -> time:
    return time.fromisoformat(_microseconds(_of(value, str)))


def _microseconds(text: str) -> str:
    """Return a time with at most six digits behind the point, if the others are zeros."""
    match = re.search(r"\.(\d{6})(\d+)", text)
    if match is None:
        return text
    if match[2].strip("0"):
        raise ValueError("nanoseconds, which Python's times do not have")
    return text[: match.start(2)] + text[match.end(2) :]


def _bits(value: Any, _: Mapping[str, str]) -> int:
    return int.from_bytes(_octets(value), "little")


def _as_text(value: Any, _: Mapping[str, str]) -> str:
    return str(_of(value, str))


_SEMANTIC: dict[str, Callable[[Any, Mapping[str, str]], Any]] = {
    "org.apache.kafka.connect.data.Decimal": _scaled_decimal,
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Timestamp": _moments(1_000),
    "io.debezium.time.Timestamp": _moments(1_000),
    "io.debezium.time.MicroTimestamp": _moments(1_000_000),
    "io.debezium.time.NanoTimestamp": _moments(1_000_000_000),
    "org.apache.kafka.connect.data.Time": _times(1_000),
    "io.debezium.time.Time": _times(1_000),
    "io.debezium.time.MicroTime": _times(1_000_000),
    "io.debezium.time.NanoTime": _times(1_000_000_000),
    "io.debezium.time.MicroDuration": lambda value, _: _duration(_of(value, int), 1_000_000),
    "io.debezium.time.ZonedTimestamp": _zoned,
    "io.debezium.time.ZonedTime": _zoned_time,
    "io.debezium.time.IsoDate": lambda value, _: date.fromisoformat(_of(value, str).rstrip("Z")),
    "io.debezium.time.IsoTime": lambda value, _: time.fromisoformat(
        _microseconds(_of(value, str).rstrip("Z"))
    ),
    "io.debezium.time.IsoTimestamp": lambda value, _: datetime.fromisoformat(
        _microseconds(_of(value, str).rstrip("Z"))
    ),
    "io.debezium.time.Interval": _as_text,
    "io.debezium.time.Year": lambda value, _: _of(value, int),
    "io.debezium.data.Bits": _bits,
    "io.debezium.data.Uuid": lambda value, _: UUID(_of(value, str)),
    "io.debezium.data.Json": _as_text,
    "io.debezium.data.Xml": _as_text,
    "io.debezium.data.Enum": _as_text,
    "io.debezium.data.EnumSet": _as_text,
    "io.debezium.data.Ltree": _as_text,
}
_CHECKED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), lambda value: _of(value, int)),
    **dict.fromkeys(("float", "double", "float32", "float64"), _float),
    "boolean": lambda value: _of(value, bool),
    "string": lambda value: _of(value, str),
}


# Rows, written.


def _encode_row(
    row: Row | None, fields: dict[str, _Schema], unavailable: frozenset[str]
) -> dict[str, Any] | None:
    if row is None:
        return None
    encoded: dict[str, Any] = {}
    for column, value in row.items():
        if value is None:
            encoded[column] = None
            fields.setdefault(column, {"type": "string", "optional": True, "field": column})
            continue
        schema, encode = _encoder(column, value)
        fields[column] = {**schema, "optional": True, "field": column}
        encoded[column] = encode(value)
    for column in sorted(unavailable):
        fields.setdefault(column, {"type": "string", "optional": True, "field": column})
        encoded[column] = UNAVAILABLE
    return encoded


def _encoder(column: str, value: object) -> tuple[_Schema, Callable[[Any], Any]]:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _ZONED, _text_of_zoned
    for kind, schema, encode in _ENCODERS:
        if isinstance(value, kind):
            return schema, encode
    raise ChangeRefused(f"column {column}: no schema of {type(value).__name__}")


def _encode_decimal(value: Decimal) -> dict[str, Any]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ChangeRefused(f"{value}: Debezium's decimals have no such value")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    octets = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return {"scale": max(-exponent, 0), "value": base64.b64encode(octets).decode()}


def _text_of_zoned(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _micros(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


_ZONED: _Schema = {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}
# In this order: a bool is an int, a datetime a date.
_ENCODERS: tuple[tuple[type | tuple[type, ...], _Schema, Callable[[Any], Any]], ...] = (
    (bool, {"type": "boolean"}, bool),
    (int, {"type": "int64"}, int),
    (
        Decimal,
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
        _encode_decimal,
    ),
    (float, {"type": "double"}, lambda value: value if value - value == 0 else str(value)),
    (str, {"type": "string"}, str),
    (bytes, {"type": "bytes"}, lambda value: base64.b64encode(value).decode()),
    (
        datetime,
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        lambda value: _micros(value - _EPOCH),
    ),
    (
        date,
        {"type": "int32", "name": "io.debezium.time.Date"},
        lambda value: (value - _DAY).days,
    ),
    (
        time,
        {"type": "int64", "name": "io.debezium.time.MicroTime"},
        lambda value: _micros(datetime.combine(_DAY, value) - _EPOCH),
    ),
    (timedelta, {"type": "int64", "name": "io.debezium.time.MicroDuration"}, _micros),
    (UUID, {"type": "string", "name": "io.debezium.data.Uuid"}, str),
    (
        (dict, list),
        {"type": "string", "name": "io.debezium.data.Json"},
        lambda value: json_text.dumps(value).decode(),
    ),
)
