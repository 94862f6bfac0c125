"""Debezium's events, after its documentation."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from ordermq import json_text
from ordermq.cdc import CanalCodec, Change, DebeziumCodec, Operation, Order
from ordermq.errors import ChangeRefused, ConfigError

POSTGRESQL = {
    "connector": "postgresql", "name": "fulfillment", "ts_ms": 1559033904863, "snapshot": "false",
    "db": "postgres", "sequence": '["24023119","24023128"]', "schema": "public",
    "table": "customers", "txId": 555, "lsn": 24023128, "xmin": None,
}  # fmt: skip
MYSQL = {
    "connector": "mysql", "name": "dbserver1", "ts_ms": 1486500577000, "snapshot": "false",
    "db": "inventory", "table": "customers", "server_id": 223344, "gtid": None,
    "file": "mysql-bin.000003", "pos": 484, "row": 2, "thread": 3,
}  # fmt: skip
ROW = {"id": 1004, "first_name": "Anne"}


def event(source: dict[str, Any] = POSTGRESQL, **fields: Any) -> bytes:
    told = {"before": None, "after": ROW, "source": source, "op": "c", "ts_ms": 1559033904870}
    return json_text.dumps(told | {"transaction": None} | fields)


def with_schema(value: Any, schema: dict[str, Any]) -> bytes:
    row = [{"type": "int64", "field": "id"}, {"field": "v", "optional": True, **schema}]
    envelope = [
        {"type": "struct", "field": name, "optional": True, "fields": row}
        for name in ("before", "after")
    ]
    payload = json_text.loads(event(after={"id": 1, "v": value}))
    return json_text.dumps({"schema": {"type": "struct", "fields": envelope}, "payload": payload})


def value_of(value: Any, schema: dict[str, Any]) -> Any:
    (change,) = DebeziumCodec().decode(with_schema(value, schema))
    assert change.after is not None
    return change.after["v"]


def semantic(name: str, **parameters: str) -> dict[str, Any]:
    return {"type": "int64", "name": name, "parameters": parameters}


def encoded(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def test_an_event_has_its_table_its_row_and_its_place_in_the_log() -> None:
    codec = DebeziumCodec(primary_keys={"public.customers": ["id"]})
    (change,) = codec.decode(event(transaction={"id": "571:53195829", "total_order": 1}))
    assert change == Change(
        operation=Operation.INSERT,
        table="customers",
        database="public",
        key_columns=("id",),
        after=ROW,
        position=(24023119, 24023128, 1),
        source="postgresql/fulfillment",
        committed_ms=1559033904863,
        transaction="571:53195829",
    )


def test_events_of_interleaved_transactions_have_growing_positions() -> None:
    """They come in the order of commits, so the place of an event alone goes back."""
    sequences = [(None, "20"), ("35", "10"), ("35", "30")]
    sources = [
        POSTGRESQL | {"lsn": int(lsn), "sequence": json_text.dumps([commit, lsn]).decode()}
        for commit, lsn in sequences
    ]
    found = [DebeziumCodec().decode(event(source))[0].position for source in sources]
    assert found == sorted(found, key=lambda position: position or ())


def test_a_place_in_mysqls_log_is_by_the_number_of_the_file() -> None:
    (change,) = DebeziumCodec().decode(event(MYSQL))
    assert (change.position, change.source) == ((3, 484, 2, 1), "mysql/dbserver1/223344")
    later = MYSQL | {"file": "mysql-bin.1000000", "pos": 4}
    assert DebeziumCodec().decode(event(later))[0].position == (1_000_000, 4, 2, 1)


def test_a_changed_key_is_two_events_at_one_place_the_delete_first() -> None:
    (delete,) = DebeziumCodec().decode(event(op="d", before={"id": 1004}, after=None))
    (create,) = DebeziumCodec().decode(event(after={"id": 1005}))
    assert (delete.position or ()) < (create.position or ())
    assert DebeziumCodec().decode(b"null") == ()


@pytest.mark.parametrize("snapshot", ["true", "first", "last", "incremental", True])
def test_a_row_of_a_snapshot_has_no_place_in_the_log(snapshot: object) -> None:
    (change,) = DebeziumCodec().decode(event(POSTGRESQL | {"snapshot": snapshot}, op="r"))
    assert (change.operation, change.position) == (Operation.READ, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"schema": null, "payload": null}',
        b'{"ts_ms": 1624}',
        event(op="m", message={"prefix": "p", "content": ""}),
    ],
)
def test_tombstones_heartbeats_and_messages_of_programs_are_no_changes(body: bytes) -> None:
    assert DebeziumCodec().decode(body) == ()


def test_topics_of_transactions_and_of_schemas_are_read() -> None:
    (begin,) = DebeziumCodec().decode(
        b'{"status":"BEGIN","id":"571:1","ts_ms":5,"event_count":null}'
    )
    assert begin == Change(operation=Operation.BEGIN, transaction="571:1", committed_ms=5)
    (end,) = DebeziumCodec().decode(b'{"status": "END", "id": "571:1", "ts_ms": 6}')
    assert end.operation is Operation.COMMIT
    body = json_text.dumps(
        {
            "source": MYSQL, "ts_ms": 7, "databaseName": "inventory", "schemaName": None,
            "ddl": "ALTER TABLE customers ADD phone int", "tableChanges": [{"type": "ALTER"}],
        }
    )  # fmt: skip
    (ddl,) = DebeziumCodec().decode(body)
    assert (ddl.operation, ddl.name) == (Operation.DDL, "inventory.customers")
    assert ddl.ddl == "ALTER TABLE customers ADD phone int"
    assert ddl.sharding_key(Order.TABLE) == "inventory.customers"
    with pytest.raises(ChangeRefused, match="order by table or by source"):
        ddl.sharding_key()


def test_a_truncate_names_its_table() -> None:
    (change,) = DebeziumCodec().decode(event(op="t", after=None))
    assert (change.operation, change.name) == (Operation.TRUNCATE, "public.customers")


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (None, {"type": "int32"}, None),
        (True, {"type": "boolean"}, True),
        (9223372036854775807, {"type": "int64"}, 9223372036854775807),
        (0.5, {"type": "double"}, 0.5),
        ("Infinity", {"type": "double"}, float("inf")),
        ("größe\n", {"type": "string"}, "größe\n"),
        (encoded(b"\x00\xff"), {"type": "bytes"}, b"\x00\xff"),
        # decimal.handling.mode: precise, precise without a scale of its own, string, double.
        (
            encoded((-1010).to_bytes(2, "big", signed=True)),
            semantic("org.apache.kafka.connect.data.Decimal", scale="2"),
            Decimal("-10.10"),
        ),
        (
            encoded((10**37 + 1).to_bytes(16, "big")),
            semantic("org.apache.kafka.connect.data.Decimal", scale="0"),
            Decimal(10**37 + 1),
        ),
        (
            encoded(b"\x01"),
            semantic("org.apache.kafka.connect.data.Decimal", scale="-3"),
            Decimal("1E+3"),
        ),
        (
            {"scale": 3, "value": encoded(b"\x30\x39")},
            semantic("io.debezium.data.VariableScaleDecimal"),
            Decimal("12.345"),
        ),
        ("12.3450", {"type": "string"}, "12.3450"),
        (12.345, {"type": "double"}, 12.345),
        # bigint.unsigned.handling.mode: precise, long where the source's type is propagated
        # (debezium#7543).
        (
            encoded(b"\x00" + b"\xff" * 8),
            semantic("org.apache.kafka.connect.data.Decimal", scale="0"),
            Decimal(2**64 - 1),
        ),
        (
            -1,
            {"type": "int64", "parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"}},
            2**64 - 1,
        ),
        # time.precision.mode: adaptive, adaptive_time_microseconds, connect, isostring.
        (18262, semantic("io.debezium.time.Date"), date(2020, 1, 1)),
        (-1, semantic("org.apache.kafka.connect.data.Date"), date(1969, 12, 31)),
        (1, semantic("io.debezium.time.Timestamp"), datetime(1970, 1, 1, 0, 0, 0, 1_000)),
        (
            -1,
            semantic("org.apache.kafka.connect.data.Timestamp"),
            datetime(1969, 12, 31, 23, 59, 59, 999_000),
        ),
        (
            1529507596945104,
            semantic("io.debezium.time.MicroTimestamp"),
            datetime(2018, 6, 20, 15, 13, 16, 945104),
        ),
        (
            1529507596945104000,
            semantic("io.debezium.time.NanoTimestamp"),
            datetime(2018, 6, 20, 15, 13, 16, 945104),
        ),
        (61_000, semantic("io.debezium.time.Time"), time(0, 1, 1)),
        (61_000_001, semantic("io.debezium.time.MicroTime"), time(0, 1, 1, 1)),
        (1_000, semantic("io.debezium.time.NanoTime"), time(0, 0, 0, 1)),
        (-3_600_000_000, semantic("io.debezium.time.MicroTime"), -timedelta(hours=1)),
        (86_400_000_000, semantic("io.debezium.time.MicroTime"), timedelta(hours=24)),
        (7, semantic("io.debezium.time.MicroDuration"), timedelta(microseconds=7)),
        (
            "2018-06-20T13:37:03.123456Z",
            semantic("io.debezium.time.ZonedTimestamp"),
            datetime(2018, 6, 20, 13, 37, 3, 123456, tzinfo=UTC),
        ),
        (
            "2018-06-20T13:37:03.120000000+02:00",
            semantic("io.debezium.time.ZonedTimestamp"),
            datetime(2018, 6, 20, 11, 37, 3, 120_000, tzinfo=UTC),
        ),
        (
            "2018-06-20T13:37:03.1Z",
            semantic("io.debezium.time.IsoTimestamp"),
            datetime(2018, 6, 20, 13, 37, 3, 100_000),
        ),
        ("2018-06-20Z", semantic("io.debezium.time.IsoDate"), date(2018, 6, 20)),
        ("13:37:03Z", semantic("io.debezium.time.IsoTime"), time(13, 37, 3)),
        ("P1Y2M3DT4H", semantic("io.debezium.time.Interval"), "P1Y2M3DT4H"),
        (2020, semantic("io.debezium.time.Year"), 2020),
        (encoded(b"\x01\x80"), semantic("io.debezium.data.Bits", length="16"), 0x8001),
        (
            "6f1e4b0e-0f6c-4d5f-9a06-1a8a25e4a9d1",
            semantic("io.debezium.data.Uuid"),
            UUID("6f1e4b0e-0f6c-4d5f-9a06-1a8a25e4a9d1"),
        ),
        ('{"a": null}', semantic("io.debezium.data.Json"), '{"a": null}'),
        ("小", semantic("io.debezium.data.Enum", allowed="小,大"), "小"),
        (
            ["AQ==", None],
            {"type": "array", "items": {"type": "bytes", "optional": True}},
            [b"\x01", None],
        ),
        (
            {"srid": None, "wkb": "AQ=="},
            {
                "type": "struct",
                "fields": [{"field": "wkb", "type": "bytes"}, {"field": "srid", "type": "int32"}],
            },
            {"srid": None, "wkb": b"\x01"},
        ),
    ],
)
def test_a_value_is_decoded_by_its_schema(
    value: object, schema: dict[str, Any], expected: object
) -> None:
    found = value_of(value, schema)
    assert (found, type(found)) == (expected, type(expected))


def test_a_time_with_a_zone_of_its_own_keeps_it() -> None:
    found = value_of("13:37:03+02:00", semantic("io.debezium.time.ZonedTime"))
    assert found.utcoffset() == timedelta(hours=2)


@pytest.mark.parametrize(
    ("value", "schema", "text"),
    [
        ("no base 64!", {"type": "bytes"}, "not base64"),
        (5, {"type": "bytes"}, "got int"),
        (True, {"type": "int32"}, "got bool"),
        ("5", {"type": "int64"}, "got str"),
        (1.5, {"type": "int64"}, "got float"),
        ("x", {"type": "double"}, "could not convert"),
        ("AQ==", semantic("org.apache.kafka.connect.data.Decimal"), "scale"),
        ({"value": "AQ=="}, semantic("io.debezium.data.VariableScaleDecimal"), "scale"),
        (1, semantic("io.debezium.time.NanoTimestamp"), "nanoseconds"),
        (
            "2018-06-20T13:37:03.000000001Z",
            semantic("io.debezium.time.ZonedTimestamp"),
            "nanoseconds",
        ),
        ("2018-06-20T13:37:03", semantic("io.debezium.time.ZonedTimestamp"), "no zone"),
        ("infinity", semantic("io.debezium.time.ZonedTimestamp"), "infinity"),
        (
            9223372036825200000,
            semantic("io.debezium.time.MicroTimestamp"),
            "date value out of range",
        ),
        ("no uuid", semantic("io.debezium.data.Uuid"), "UUID"),
    ],
)
def test_a_value_that_does_not_fit_its_schema_is_refused_with_its_column(
    value: object, schema: dict[str, Any], text: str
) -> None:
    with pytest.raises(ChangeRefused, match=text) as caught:
        value_of(value, schema)
    assert "public.customers.v" in str(caught.value)


def test_types_are_given_by_hand_where_events_have_no_schemas() -> None:
    types = {
        "customers": {
            "amount": ("org.apache.kafka.connect.data.Decimal", {"scale": "2"}),
            "raw": "bytes",
        }
    }
    body = event(after={"id": 1, "amount": "A/I=", "raw": "AQ=="})
    (change,) = DebeziumCodec(types=types).decode(body)
    assert change.after == {"id": 1, "amount": Decimal("10.10"), "raw": b"\x01"}
    with pytest.raises(ConfigError, match="'decimal' is no schema of Debezium"):
        DebeziumCodec(types={"t": {"c": "decimal"}})


@pytest.mark.parametrize("before", [None, {"id": 1, "name": None}])
def test_an_update_says_nothing_of_the_row_before_it(before: object) -> None:
    """flink#13019: a table whose REPLICA IDENTITY is not FULL; the key is that of the new row."""
    codec = DebeziumCodec(primary_keys={"customers": ["id"]})
    (change,) = codec.decode(event(op="u", before=before, after={"id": 1, "name": "Anne"}))
    assert change.key() == (1,)
    assert change.split() == (change,)


@pytest.mark.parametrize(
    ("value", "expected"), [("B1g=", "0.1880"), ("DCY=", "0.3110"), ("+KI=", "-0.1886")]
)
def test_a_decimal_keeps_the_scale_of_its_column(value: str, expected: str) -> None:
    """airbyte#4315: values of a decimal(10,4)."""
    schema = semantic("org.apache.kafka.connect.data.Decimal", scale="4")
    assert str(value_of(value, schema)) == expected


@pytest.mark.parametrize(
    "placeholder",
    [
        "__debezium_unavailable_value",
        encoded(b"__debezium_unavailable_value"),
        ["__debezium_unavailable_value"],
        # An array of each type has a placeholder of its own (debezium#5069, and behind it).
        [encoded(b"__debezium_unavailable_value")],
        list(b"__debezium_unavailable_value"),
        ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        {"__debezium_unavailable_value": "__debezium_unavailable_value"},
        '{"__debezium_unavailable_value":"__debezium_unavailable_value"}',
        {"srid": 4326, "wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ=="},
        {"srid": 4326, "wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA=="},
        {"x": -99999999.0, "y": -99999999.0, "wkb": "AQ==", "srid": None},
    ],
)
def test_a_value_that_the_log_does_not_have_is_told_apart(placeholder: object) -> None:
    (change,) = DebeziumCodec().decode(event(op="u", after={"id": 1, "text": placeholder}))
    assert (change.after, change.unavailable) == ({"id": 1}, {"text"})
    moved = event(op="u", before={"id": 2}, after={"id": 1, "text": placeholder})
    (change,) = DebeziumCodec(primary_keys={"customers": ["id"]}).decode(moved)
    with pytest.raises(ChangeRefused, match="REPLICA IDENTITY FULL"):
        change.split()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xff", "JsonConverter"),
        (b"[1]", "expected an object"),
        (b'{"id": 1, "name": "Anne"}', "ExtractNewRecordState"),
        (event(op="x"), "none of c, u, d, r, t"),
        (event(source=None), "no source"),  # type: ignore[arg-type]
        (event(source={"connector": "x"}), "source has no table"),
        (event(after=None), "the row after it is missing"),
        (event(op="d", after=None), "the row before it is missing"),
        (event(after=[1]), "expected a row as an object"),
    ],
)
def test_what_is_no_event_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        DebeziumCodec().decode(body)


@pytest.mark.parametrize(
    "body",
    [
        event(op=["c"]), event(op={"c": 1}), event(ts_ms="soon", source={"table": "t"}),
        event(transaction="x"), event(transaction={"id": 5}), event(source={"table": ["t"]}),
        event(source=POSTGRESQL | {"ts_ms": "x"}), event(source=POSTGRESQL | {"sequence": "["}),
        event(source=POSTGRESQL | {"sequence": '{"a": 1}'}), event(source=MYSQL | {"pos": "x"}),
        event(source=MYSQL | {"file": 5}), event(source=MYSQL | {"schema": {}}),
        with_schema(-1, {"type": "int64", "parameters": "x"}),
        with_schema({"a": 1}, {"type": "struct", "fields": [5]}),
        json_text.dumps({"schema": [1], "payload": json_text.loads(event())}),
        json_text.dumps({"status": "END", "id": 5}), json_text.dumps({"ddl": 5}),
        json_text.dumps({"ddl": "x", "source": "y"}), b'{"op":' + b"[" * 100_000,
        event(after={"a": []})[:-1] + b',"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
)  # fmt: skip
def test_parts_of_another_type_are_refused(body: bytes) -> None:
    with pytest.raises(ChangeRefused):
        DebeziumCodec().decode(body)


@pytest.mark.parametrize("scale", [2**31, -(2**31), "2"])
def test_a_scale_that_no_database_has_is_refused(scale: Any) -> None:
    value = {"scale": scale, "value": encoded(b"\x01")}
    kind = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
    with pytest.raises(ChangeRefused, match=r"\.v: "):
        value_of(value, kind)


@pytest.mark.parametrize(
    ("codec", "whole"),
    [
        (DebeziumCodec(), with_schema("MTIz", {"type": "bytes"})),
        (DebeziumCodec(), event(source=MYSQL, before=ROW, op="u")),
        (
            CanalCodec(),
            CanalCodec().encode(
                Change(
                    operation=Operation.UPDATE, table="t", database="shop", key_columns=("id",),
                    before={"id": 1, "at": datetime(2020, 1, 1)},
                    after={"id": 1, "at": datetime(2020, 1, 2)}, committed_ms=5,
                )
            ),
        ),
    ],
    ids=["with schema", "without schema", "Canal"],
)  # fmt: skip
def test_a_message_in_which_anything_is_replaced_is_decoded_or_refused(
    codec: Any, whole: bytes
) -> None:
    hostile = (
        None,
        True,
        -1,
        2**64 - 1,
        1e308,
        "",
        "x" * 1_000,
        "9" * 5_000,
        [],
        [[]],
        {},
        {"": {}},
    )
    for path in paths(json_text.loads(whole)):
        for value in hostile:
            message = json_text.loads(whole)
            put(message, path, value)
            try:
                changes = codec.decode(json_text.dumps(message))
            except ChangeRefused:
                continue
            for change in changes:
                assert isinstance(change.name, str)
                assert isinstance(change.committed_ms, int | None), (path, value)
                assert isinstance(change.position, tuple | None), (path, value)
                assert isinstance(change.transaction, str | None), (path, value)
                assert all(isinstance(column, str) for column in change.key_columns), (path, value)


def paths(node: Any) -> list[tuple[Any, ...]]:
    """Paths to each part of a document."""
    if not isinstance(node, dict | list):
        return []
    items = list(node.items() if isinstance(node, dict) else enumerate(node))
    return [(key, *rest) for key, part in items for rest in [(), *paths(part)]]


def put(node: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value


VALUES = {
    "id": 2**63 - 1,
    "amount": Decimal("-10.100"),
    "large": Decimal("1E+20"),
    "at": datetime(2018, 6, 20, 15, 13, 16, 945104),
    "zoned": datetime(2018, 6, 20, 15, tzinfo=UTC),
    "day": date(1969, 12, 31),
    "of_day": time(23, 59, 59, 999999),
    "span": -timedelta(days=3),
    "raw": bytes(range(256)),
    "share": 0.1,
    "not_finite": float("-inf"),
    "flag": False,
    "name": "größe\x00",
    "uuid": UUID("6f1e4b0e-0f6c-4d5f-9a06-1a8a25e4a9d1"),
    "none": None,
}


def test_what_is_encoded_is_decoded_to_the_same() -> None:
    codec = DebeziumCodec(primary_keys={"s.t": ["id"]})
    told: dict[str, Any] = {
        "table": "t", "database": "s", "key_columns": ("id",), "source": "postgresql/shop",
        "committed_ms": 5, "transaction": "7",
    }  # fmt: skip
    update = Change(
        operation=Operation.UPDATE, before=VALUES | {"id": 1}, after=VALUES, position=(5, 7, 1),
        unavailable=frozenset({"toasted"}), **told,
    )  # fmt: skip
    delete = Change(operation=Operation.DELETE, before=VALUES, position=(5, 8, 0), **told)
    read = Change(operation=Operation.READ, after=VALUES, **told)
    truncate = Change(operation=Operation.TRUNCATE, position=(5, 9, 1), **told)
    for change in update, delete, read, truncate:
        assert codec.decode(codec.encode(change)) == (change,)


def test_without_schemas_an_event_is_the_payload_alone() -> None:
    change = Change(operation=Operation.INSERT, table="t", after={"id": 1})
    body = DebeziumCodec(with_schemas=False).encode(change)
    assert json_text.loads(body)["op"] == "c"
    assert DebeziumCodec().decode(body)[0].after == {"id": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Change(operation=Operation.DDL), "no row event of ddl"),
        ([Change(operation=Operation.TRUNCATE)] * 2, "of one change, got 2"),
        (5, "expected a Change"),
        (Change(operation=Operation.INSERT, after={"v": object()}), "no schema of object"),
        (Change(operation=Operation.INSERT, after={"v": Decimal("NaN")}), "no such value"),
    ],
)
def test_what_debezium_has_no_event_for_is_not_encoded(value: object, text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        DebeziumCodec().encode(value)
