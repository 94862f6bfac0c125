"""Canal's flat messages, after its documentation and its issues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ordermq import json_text
from ordermq.cdc import CanalCodec, Change, Operation
from ordermq.errors import ChangeRefused, ConfigError


def flat(**fields: Any) -> bytes:
    told = {
        "data": [{"id": "7", "name": "lamp"}],
        "database": "shop",
        "es": 1589373560000,
        "id": 9,
        "isDdl": False,
        "mysqlType": {"id": "int(11)", "name": "varchar(32)"},
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 4, "name": 12},
        "table": "goods",
        "ts": 1589373560798,
        "type": "INSERT",
    }
    return json_text.dumps(told | fields)


def value_of(text: str | None, mysql_type: str, **settings: Any) -> Any:
    body = flat(data=[{"id": "7", "v": text}], mysqlType={"id": "int", "v": mysql_type})
    (change,) = CanalCodec(**settings).decode(body)
    assert change.after is not None
    return change.after["v"]


def test_an_insert_has_its_place_its_key_and_the_row_after_it() -> None:
    (change,) = CanalCodec().decode(flat(gtid="3e11fa47:23"))
    assert change == Change(
        operation=Operation.INSERT,
        table="goods",
        database="shop",
        key_columns=("id",),
        after={"id": 7, "name": "lamp"},
        committed_ms=1589373560000,
        transaction="3e11fa47:23",
    )
    assert change.name == "shop.goods"
    assert change.key() == (7,)
    assert change.sharding_key() == "shop.goods:7"


def test_one_statement_of_many_rows_is_a_change_per_row_in_order() -> None:
    rows = [{"id": str(number), "name": "x"} for number in range(3)]
    changes = CanalCodec().decode(flat(data=rows))
    assert [change.key() for change in changes] == [(0,), (1,), (2,)]


def test_old_has_only_what_changed_and_the_row_before_is_whole() -> None:
    (change,) = CanalCodec().decode(flat(type="UPDATE", old=[{"name": None}]))
    assert change.before == {"id": 7, "name": None}
    assert change.after == {"id": 7, "name": "lamp"}
    assert not change.changes_key()


def test_a_changed_key_is_a_delete_and_an_insert_in_order() -> None:
    """canal#3152: by the new key alone, two updates of a row reach two queues."""
    (change,) = CanalCodec().decode(flat(type="UPDATE", old=[{"id": "6"}]))
    with pytest.raises(ChangeRefused, match="split"):
        change.sharding_key()
    delete, insert = change.split()
    assert (delete.operation, delete.key(), delete.sharding_key()) == (
        Operation.DELETE,
        (6,),
        "shop.goods:6",
    )
    assert (insert.operation, insert.key(), insert.sharding_key()) == (
        Operation.INSERT,
        (7,),
        "shop.goods:7",
    )


def test_a_delete_has_the_row_before_it() -> None:
    (change,) = CanalCodec().decode(flat(type="DELETE"))
    assert (change.before, change.after) == ({"id": 7, "name": "lamp"}, None)
    assert change.key() == (7,)


@pytest.mark.parametrize(
    ("text", "mysql_type", "expected"),
    [
        (None, "int(11)", None),
        ("", "varchar(9)", ""),
        ("NULL", "varchar(9)", "NULL"),
        ("18446744073709551615", "bigint(20) unsigned", 18446744073709551615),
        ("-9223372036854775808", "bigint(20)", -9223372036854775808),
        ("1", "tinyint(1)", 1),
        ("5", "bit(3)", 5),
        ("2020", "year(4)", 2020),
        (
            "123456789012345678901234567890.12",
            "decimal(32,2)",
            Decimal("123456789012345678901234567890.12"),
        ),
        ("-0.10", "decimal(10,2)", Decimal("-0.10")),
        ("1.5E-7", "double", 1.5e-7),
        ("2020-05-13", "date", date(2020, 5, 13)),
        ("2020-05-13 12:39:20.000123", "datetime(6)", datetime(2020, 5, 13, 12, 39, 20, 123)),
        ("2020-05-13 12:39:20.5", "datetime(1)", datetime(2020, 5, 13, 12, 39, 20, 500_000)),
        ("2020-05-13 12:39:20", "timestamp", datetime(2020, 5, 13, 12, 39, 20)),
        ("-838:59:59", "time", -timedelta(hours=838, minutes=59, seconds=59)),
        ("12:00:00.25", "time(2)", timedelta(hours=12, milliseconds=250)),
        ("\x00\xff\x80a", "varbinary(4)", b"\x00\xff\x80a"),
        ("\x00\x00", "blob", b"\x00\x00"),
        ('{"größe": 1}', "json", '{"größe": 1}'),
        ("NULL", "json", "null"),  # canal#1762
        ("a,b", "set('a','b')", "a,b"),
        ("小", "enum('小','大')", "小"),
        ("x", "a type of the future", "x"),
    ],
)
def test_a_value_is_decoded_by_the_type_of_its_column(
    text: str | None, mysql_type: str, expected: object
) -> None:
    found = value_of(text, mysql_type)
    assert (found, type(found)) == (expected, type(expected))


def test_a_timestamp_gets_the_zone_of_canals_jvm() -> None:
    shanghai = ZoneInfo("Asia/Shanghai")
    found = value_of("2020-05-13 12:39:20", "timestamp", time_zone=shanghai)
    assert found == datetime(2020, 5, 13, 4, 39, 20, tzinfo=UTC)
    # A datetime has no zone in MySQL either.
    assert value_of("2020-05-13 12:39:20", "datetime", time_zone=shanghai).tzinfo is None


def test_types_are_taken_from_the_codes_of_jdbc_where_mysql_types_are_missing() -> None:
    (change,) = CanalCodec().decode(flat(mysqlType=None))
    assert change.after == {"id": 7, "name": "lamp"}


def test_unicode_names_and_reserved_words_stay_as_they_are() -> None:
    body = flat(
        table="订单", data=[{"编号": "1", "order": "a"}], pkNames=["编号"],
        mysqlType={"编号": "int", "order": "char(1)"},
    )  # fmt: skip
    (change,) = CanalCodec().decode(body)
    assert change.sharding_key() == "shop.订单:1"
    assert change.after == {"编号": 1, "order": "a"}


def test_ddl_and_truncate_are_told_apart() -> None:
    ddl = flat(isDdl=True, type="ALTER", sql="alter table goods add c int", data=None)
    (change,) = CanalCodec().decode(ddl)
    assert (change.operation, change.ddl) == (Operation.DDL, "alter table goods add c int")
    (change,) = CanalCodec().decode(flat(isDdl=True, type="TRUNCATE", sql="truncate t", data=None))
    assert (change.operation, change.name) == (Operation.TRUNCATE, "shop.goods")
    assert CanalCodec().decode(flat(type="TIDB_WATERMARK")) == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"type": "QUERY", "sql": "update goods set a = 1"}, "binlog_format is ROW"),
        ({"type": "MERGE"}, "expected INSERT, UPDATE or DELETE"),
        ({"data": None}, "no rows in data"),
        ({"data": []}, "no rows in data"),
        ({"data": ["7"]}, "expected a row as an object"),
        ({"data": [{"id": 7}]}, "expected a text"),
        ({"type": "UPDATE", "old": [{}, {}]}, "other ones in old"),
        ({"table": 5}, "table is 5"),
        ({"data": [{"id": "seven"}]}, r"goods\.id: 'seven' as int\(11\)"),
        ({"data": [{"id": "-1"}], "mysqlType": {"id": "bigint unsigned"}}, "a negative value"),
        ({"data": [{"id": "0000-00-00"}], "mysqlType": {"id": "date"}}, "zero_dates_as_null"),
        ({"data": [{"id": "2020-00-00 00:00:00"}], "mysqlType": {"id": "datetime"}}, "no date"),
        ({"data": [{"id": "NaN"}], "mysqlType": {"id": "int"}}, "NaN"),
        ({"data": [{"id": "Ā"}], "mysqlType": {"id": "blob"}}, "blob"),
    ],
)
def test_a_message_that_cannot_be_right_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        CanalCodec().decode(flat(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"es": "soon"}, {"gtid": 5}, {"pkNames": "id"}, {"pkNames": [[]]}, {"mysqlType": [1]},
        {"sqlType": {"id": []}}, {"sqlType": "int"}, {"isDdl": True, "sql": [1]},
        {"database": ["shop"]}, {"type": ["INSERT"]}, {"old": 5},
        {"data": {"id": "7"}}, {"data": [[["7"]]]}, {"data": [{"id": {"id": {}}}]},
    ],
)  # fmt: skip
def test_parts_of_another_type_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ChangeRefused):
        CanalCodec().decode(flat(**({"type": "UPDATE"} | fields)))


@pytest.mark.parametrize("text", ["1e999999999", "NaN", "1_0", " 1", "٣", "", ".", "-"])
def test_a_decimal_is_digits_with_a_point_at_most(text: str) -> None:
    with pytest.raises(ChangeRefused, match="expected digits"):
        value_of(text, "decimal(10,2)")


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"null", b"{}", b'{"op": "c"}', b'{"a": 1'])
def test_what_is_no_flat_message_is_refused(body: bytes) -> None:
    with pytest.raises(ChangeRefused, match="no flat message"):
        CanalCodec().decode(body)


def test_a_zero_date_is_none_where_that_is_wanted() -> None:
    assert value_of("0000-00-00 00:00:00", "datetime", zero_dates_as_null=True) is None


def test_a_row_without_its_key_is_refused() -> None:
    for body in flat(data=[{"name": "x"}]), flat(data=[{"id": None, "name": "x"}]):
        (change,) = CanalCodec().decode(body)
        with pytest.raises(ChangeRefused, match=r"insert of shop.goods: no value of the key's id"):
            change.key()
    (change,) = CanalCodec().decode(flat(pkNames=None))
    with pytest.raises(ChangeRefused, match="no primary key is known"):
        change.key()
    assert change.key(["name"]) == ("lamp",)


ROW = {
    "id": 18446744073709551615,
    "amount": Decimal("-0.10"),
    "at": datetime(2020, 5, 13, 12, 39, 20, 123),
    "day": date(2020, 5, 13),
    "span": -timedelta(hours=30, microseconds=1),
    "raw": bytes(range(256)),
    "share": 0.1,
    "name": "größe\x00'\"\\",
    "none": None,
    "paid": datetime(2020, 5, 13, 12, tzinfo=UTC),
}


def test_what_is_encoded_is_decoded_to_the_same() -> None:
    codec = CanalCodec(time_zone=ZoneInfo("Asia/Shanghai"))
    insert = Change(
        operation=Operation.INSERT, table="goods", database="shop", key_columns=("id",), after=ROW,
        committed_ms=5, transaction="t",
    )  # fmt: skip
    delete = Change(operation=Operation.DELETE, table="goods", key_columns=("id",), before=ROW)
    update = Change(
        operation=Operation.UPDATE, table="goods", key_columns=("id",),
        before=ROW | {"id": 1, "none": "something"}, after=ROW,
    )  # fmt: skip
    truncate = Change(operation=Operation.TRUNCATE, table="goods", ddl="truncate goods")
    for change in insert, delete, update, truncate:
        assert codec.decode(codec.encode(change)) == (change,)
    assert codec.decode(codec.encode([insert, insert])) == (insert, insert)


def test_what_canal_has_no_words_for_is_not_encoded() -> None:
    row = Change(operation=Operation.INSERT, table="t", after={"id": 1})
    cases: list[tuple[Any, str]] = [
        (Change(operation=Operation.BEGIN), "no flat message of begin"),
        ([], "one change at least"),
        ("a text", "expected a Change"),
        ([row, Change(operation=Operation.DELETE, table="t", before={"id": 1})], "one table"),
        (
            Change(operation=Operation.INSERT, table="t", after={"id": object()}),
            "no type of object",
        ),
        (Change(operation=Operation.INSERT, table="t", after={"at": ROW["paid"]}), "time_zone"),
        (Change(operation=Operation.INSERT, table="t"), "the row is missing"),
        (
            Change(
                operation=Operation.UPDATE, table="t", after={"id": 1}, unavailable=frozenset("b")
            ),
            "REPLICA IDENTITY FULL",
        ),
    ]
    for value, text in cases:
        with pytest.raises(ChangeRefused, match=text):
            CanalCodec().encode(value)
    with pytest.raises(ConfigError, match="expected a tzinfo"):
        CanalCodec(time_zone="UTC")  # type: ignore[arg-type]


INSERT, OTHER = 1, 99


def field(number: int, value: bytes | int) -> bytes:
    """Encode a field of protocol buffers; numbers below 128."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    size = len(value)
    return bytes((number << 3 | 2, size & 0x7F | 0x80, size >> 7)) + value


def packet(change: bytes, *, kind: int = 7, compression: int = 1, entry_type: int = 2) -> bytes:
    """Return a packet of one entry with this RowChange."""
    entry = field(1, field(9, b"goods")) + field(2, entry_type) + field(3, change)
    return field(3, kind) + field(4, compression) + field(5, field(2, entry))


def test_a_packet_of_entries_has_the_changes_of_the_flat_messages(
    vector: Callable[[str], bytes],
) -> None:
    """Canal's own converter makes flat messages of such entries."""
    row = {"id": 18446744073709551615, "name": "lämp", "price": Decimal("9.00"), "raw": b"\0\xff"}
    told: dict[str, Any] = {
        "table": "größe",
        "database": "shop",
        "committed_ms": 1589373560000,
        "transaction": "3e11fa47:23",
    }
    of_rows = told | {"key_columns": ("id",)}
    assert CanalCodec().decode(vector("cdc/canal_packet")) == (
        Change(operation=Operation.INSERT, after=row, **of_rows),
        Change(operation=Operation.INSERT, after=row | {"name": ""}, **of_rows),
        Change(operation=Operation.UPDATE, before=row, after=row | {"name": None}, **of_rows),
        Change(operation=Operation.DELETE, before=row | {"name": None}, **of_rows),
        Change(operation=Operation.DDL, ddl="ALTER TABLE goods ADD COLUMN x int", **told),
        Change(operation=Operation.TRUNCATE, ddl="TRUNCATE TABLE goods", **told),
    )


def test_a_packet_that_was_cut_or_changed_is_refused_or_read_and_raises_nothing_else(
    vector: Callable[[str], bytes],
) -> None:
    whole = vector("cdc/canal_packet")
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :]):
            with suppress(ChangeRefused):
                CanalCodec().decode(damaged)
    with pytest.raises(ChangeRefused, match="no packet of Canal: a _Packet is truncated"):
        CanalCodec().decode(whole[:-1])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (packet(b"", kind=6), "packet of Canal of type 6: expected 7"),
        (packet(b"", compression=3), "packet of Canal with compression 3"),
        (packet(b"", entry_type=OTHER), "entry of Canal of type 99: not known"),
        (packet(field(2, INSERT)), "insert of goods: the message has no rows in data"),
        (packet(field(2, OTHER)), "type '99': expected INSERT, UPDATE or DELETE"),
        (packet(field(2, 7) + field(11, b"UPDATE goods")), "binlog_format is ROW"),
        (packet(field(2, INSERT) + field(12, field(2, field(8, b"7")))), "names of their own"),
        (
            packet(field(2, INSERT) + field(12, field(2, field(3, b"id")) * 2)),
            "goods: columns of an entry without names of their own",
        ),
    ],
)
def test_a_packet_that_cannot_be_applied_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ChangeRefused, match=reason):
        CanalCodec().decode(body)
