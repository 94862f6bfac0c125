"""Copies of tables: equal to the source, each change once, whatever is delivered again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Engine, MetaData, Table, func, select

from ordermq import json_text
from ordermq.cdc import ApplyChanges, CanalCodec, Change, DebeziumCodec, Operation
from ordermq.cdc.change import POSITION_PROPERTY, Position
from ordermq.errors import ChangeRefused, ConfigError, DecodeError
from ordermq.model.message_queue import MessageQueue

QUEUE = MessageQueue("changes", "broker-a", 0)
CODEC = DebeziumCodec()
NO_KEY: dict[str, str] = {}


@dataclass
class FakeMessage:
    """A message of the queue, as a listener gets it."""

    body: bytes
    queue_offset: int = 0
    store_timestamp_ms: int = 0
    sharding_key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    message_queue: MessageQueue = QUEUE

    def get_property(self, name: str, /) -> str | None:
        return self.properties.get(name)


class Call:
    """A context whose transactions are committed where `commit` says so."""

    consumer_group = "copy"

    def __init__(self, connection: Any = None) -> None:
        self.connection = connection

    def transaction(self) -> Any:
        return self.connection


@contextmanager
def call(engine: Engine) -> Iterator[Call]:
    with engine.begin() as connection:
        yield Call(connection)


def apply_all(
    apply: ApplyChanges, engine: Engine, changes: Sequence[Change], first_offset: int = 0
) -> None:
    with call(engine) as context:
        apply(messages_of(changes, first_offset), context)


def messages_of(changes: Sequence[Change], first_offset: int = 0) -> list[FakeMessage]:
    found = []
    for offset, change in enumerate(changes, first_offset):
        message = FakeMessage(
            CODEC.encode(change), offset, 1_000 + offset, sharding_key=f"k{change.key(['id'])}"
        )
        if change.position is not None:
            position = Position(change.source, change.position, ())
            message.properties[POSITION_PROPERTY] = position.to_property()
        found.append(message)
    return found


def insert(number: int, name: str | None, **told: Any) -> Change:
    row = {"id": number, "name": name}
    return Change(operation=Operation.INSERT, table="goods", after=row, **told)


def delete(number: int, **told: Any) -> Change:
    return Change(operation=Operation.DELETE, table="goods", before={"id": number}, **told)


@pytest.fixture
def goods(engine: Engine) -> Table:
    table = Table(
        "goods",
        MetaData(),
        Column("id", sa.Integer, primary_key=True),
        Column("name", sa.Text),
        Column("größe: %(x)s", sa.Integer),
    )
    table.create(engine)
    return table


def rows(engine: Engine, table: Table) -> dict[Any, Any]:
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(select(table).order_by("id"))}


def test_the_last_change_of_each_key_stands(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, [goods], CODEC)
    apply_all(apply, engine, [insert(1, "a"), insert(2, "b"), delete(1), insert(2, "c")])
    assert rows(engine, goods) == {2: "c"}
    apply_all(apply, engine, [delete(2), insert(1, "d"), delete(7), insert(3, None)], 4)
    assert rows(engine, goods) == {1: "d", 3: None}
    counts = apply.statistics["goods"]
    assert (counts.upserted, counts.deleted) == (3, 3)
    assert counts.changes == {"insert": 5, "delete": 3}


def test_columns_of_any_name_are_written(engine: Engine, goods: Table) -> None:
    row = {"id": 1, "größe: %(x)s": 5}
    change = Change(operation=Operation.READ, table="goods", after=row)
    apply_all(ApplyChanges(engine, [goods], CODEC), engine, [change])
    with engine.connect() as connection:
        assert connection.execute(select(goods)).one() == (1, None, 5)


def test_a_change_without_some_columns_leaves_them(engine: Engine, goods: Table) -> None:
    def renamed(number: int) -> Change:
        told = {"id": number, "größe: %(x)s": 9}
        return Change(
            operation=Operation.UPDATE, table="goods", after=told, unavailable=frozenset({"name"})
        )

    apply = ApplyChanges(engine, [goods], CODEC)
    apply_all(apply, engine, [insert(1, "large"), insert(2, "larger"), renamed(2)])
    apply_all(apply, engine, [renamed(1)], 3)
    assert rows(engine, goods) == {1: "large", 2: "larger"}
    for changes in ([renamed(5)], [delete(1), renamed(1)]):
        with pytest.raises(ChangeRefused, match="the row is not there"):
            apply_all(apply, engine, changes, 4)
    assert rows(engine, goods) == {1: "large", 2: "larger"}


def test_a_unique_value_may_move_to_another_row(engine: Engine) -> None:
    table = Table(
        "goods", MetaData(), Column("id", sa.Integer, primary_key=True),
        Column("name", sa.String(20), unique=True),
    )  # fmt: skip
    table.create(engine)
    apply = ApplyChanges(engine, [table], CODEC)
    apply_all(apply, engine, [insert(2, "first")])
    apply_all(apply, engine, [delete(2), insert(1, "first")], 1)
    assert rows(engine, table) == {1: "first"}


@pytest.mark.parametrize("by_key", [False, True])
def test_what_a_producer_sent_again_is_dropped(
    engine: Engine, goods: Table, by_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    apply = ApplyChanges(engine, [goods], CODEC, by_key=by_key)
    told = [
        insert(1, "old", position=(5, 0), source="log"),
        insert(1, "new", position=(5, 1), source="log"),
        insert(1, "newest", position=(6, 0), source="log"),
    ]
    apply_all(apply, engine, told[:2])
    apply_all(apply, engine, told, first_offset=2)
    assert rows(engine, goods) == {1: "newest"}
    assert apply.repeats == 2
    assert caplog.text.count("dropped a change") == 2
    # Another source has other positions.
    apply_all(apply, engine, [insert(1, "other", position=(1, 0), source="another")], 5)
    assert rows(engine, goods) == {1: "other"}


def test_a_message_behind_one_that_was_not_stored_waits_for_both_to_come_again(
    engine: Engine, goods: Table
) -> None:
    """The send of (5, 1) failed when (5, 2) of another key was on its way already."""
    apply = ApplyChanges(engine, [goods], CODEC)
    places: list[tuple[Any, Any]] = [
        ((5, 0), ()), ((5, 2), (5, 1)), ((5, 3), (5, 2)),
        ((5, 1), ()), ((5, 2), (5, 1)), ((5, 3), (5, 2)), ((9, 0), (5, 3)),
    ]  # fmt: skip
    messages = messages_of([insert(place[1], f"{place}") for place, _ in places])
    for message, (place, previous) in zip(messages, places, strict=True):
        position = Position("log@1", place, previous)
        message.properties[POSITION_PROPERTY] = position.to_property()
        assert Position.of_message(message) == position
    for message in messages:
        with call(engine) as context:
            apply([message], context)
    assert rows(engine, goods) == {0: "(9, 0)", 1: "(5, 1)", 2: "(5, 2)", 3: "(5, 3)"}
    assert apply.repeats == 2


def test_messages_of_other_programs_are_applied_as_they_come(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, [goods], CODEC)
    messages = messages_of([insert(1, "a", position=(5, 0)), insert(1, "b", position=(1, 0))])
    for message in messages:
        message.properties.clear()
    with call(engine) as context:
        apply(messages, context)
    assert rows(engine, goods) == {1: "b"}
    messages[0].properties[POSITION_PROPERTY] = "nonsense"
    with call(engine) as context, pytest.raises(ChangeRefused, match="CDC_POSITION='nonsense'"):
        apply(messages, context)


def test_a_body_that_cannot_be_decompressed_is_named(engine: Engine, goods: Table) -> None:
    class Damaged(FakeMessage):
        @property
        def body(self) -> bytes:
            raise DecodeError("message body is damaged")

        @body.setter
        def body(self, body: bytes) -> None: ...

    apply = ApplyChanges(engine, [goods], CODEC)
    with call(engine) as context, pytest.raises(DecodeError, match=r"damaged.*offset=7") as raised:
        apply([Damaged(b"", queue_offset=7)], context)
    assert raised.value.topic == QUEUE.topic


def test_by_key_a_late_call_changes_nothing(engine: Engine, goods: Table) -> None:
    """A member that was frozen holds an old message of a key; others have gone on."""
    apply = ApplyChanges(engine, [goods], CODEC, by_key=True)
    messages = messages_of([insert(1, "old"), insert(2, "b"), insert(1, "new")])
    for message in messages:
        message.sharding_key = f"k{message.queue_offset % 2}"
    apply(messages, Call())
    apply(messages[:1], Call())
    assert rows(engine, goods) == {1: "new", 2: "b"}
    assert apply.repeats == 1


@pytest.mark.parametrize("positions", [False, True])
def test_by_key_changes_of_a_topic_that_was_made_anew_are_applied(
    engine: Engine, goods: Table, positions: bool
) -> None:
    """Its offsets begin at 0 again; a call of the life before that comes late is a repeat."""

    def told(step: int) -> dict[str, Any]:
        return {"position": (step, 0)} if positions else {}

    apply = ApplyChanges(engine, [goods], CODEC, by_key=True)
    before = messages_of([insert(1, f"v{step}", **told(step)) for step in range(5)])
    apply(before, Call())
    after = messages_of([insert(1, f"v{step}", **told(step)) for step in range(5, 7)])
    for message in after:
        message.store_timestamp_ms += 60_000
    apply(after[:1], Call())
    apply(after, Call())
    assert rows(engine, goods) == {1: "v6"}
    apply(before[:2], Call())
    assert rows(engine, goods) == {1: "v6"}
    assert apply.repeats == 3


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_the_progress_of_a_queue_is_inserted_once(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, [goods], CODEC)
    apply_all(apply, engine, [insert(1, "a", position=(1, 0))])
    said: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    apply_all(apply, engine, [insert(2, "b", position=(2, 0))], 1)
    assert [each.split()[0] for each in said if "ordermq_changes" in each] == ["SELECT", "UPDATE"]


def test_a_call_that_is_rolled_back_leaves_nothing(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, [goods], CODEC)
    changes = [insert(1, "a", position=(1, 0)), insert(2, "b", position=(1, 1))]
    with pytest.raises(RuntimeError), call(engine) as context:
        apply(messages_of(changes), context)
        raise RuntimeError
    assert rows(engine, goods) == {}
    apply_all(apply, engine, changes)
    assert rows(engine, goods) == {1: "a", 2: "b"}


def test_a_changed_key_is_applied_where_the_topic_keeps_the_order(
    engine: Engine, goods: Table
) -> None:
    moved = Change(
        operation=Operation.UPDATE, table="goods", before={"id": 1, "name": "a"},
        after={"id": 2, "name": "a"},
    )  # fmt: skip
    by_table = ApplyChanges(engine, [goods], CODEC, order="table")
    messages = messages_of([insert(1, "a"), moved, insert(1, "b")])
    for message in messages:
        message.sharding_key = "goods"
    with call(engine) as context:
        by_table(messages, context)
    assert rows(engine, goods) == {1: "b", 2: "a"}
    by_key = ApplyChanges(engine, [goods], CODEC)
    with pytest.raises(ChangeRefused, match=r"from \(1,\) to \(2,\) in one message"):
        apply_all(by_key, engine, [moved], 3)


def test_a_topic_that_is_not_ordered_by_table_is_found_out(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, [goods], CODEC, order="table")
    with pytest.raises(ChangeRefused, match="ordered by table it must be one"):
        apply_all(apply, engine, [insert(1, "a"), insert(2, "b")])
    assert rows(engine, goods) == {}


def test_truncates_and_ddl_follow_their_policies(engine: Engine, goods: Table) -> None:
    truncate = FakeMessage(CODEC.encode(Change(operation=Operation.TRUNCATE, table="goods")), 1)
    ddl = FakeMessage(json_text.dumps({"ddl": "ALTER TABLE goods ADD x int", "source": {}}), 2)
    told: list[Any] = []

    def note(change: Change, connection: Any) -> None:
        told.append((change.ddl, connection.scalar(select(func.count()).select_from(goods))))

    apply = ApplyChanges(engine, [goods], CODEC, order="table", on_truncate="apply", on_ddl=note)
    before, after = messages_of([insert(1, "a")])[0], messages_of([insert(2, "b")], 3)[0]
    before.sharding_key = after.sharding_key = "goods"
    with call(engine) as context:
        apply([before, truncate, ddl, after], context)
    assert rows(engine, goods) == {2: "b"}
    assert told == [("ALTER TABLE goods ADD x int", 0)]

    refusing = ApplyChanges(engine, [goods], CODEC)
    for message, text in (truncate, "on_truncate='ignore'"), (ddl, "ADD x int.*on_ddl='ignore'"):
        with call(engine) as context, pytest.raises(ChangeRefused, match=text):
            refusing([message], context)
    ignoring = ApplyChanges(engine, [goods], CODEC, on_truncate="ignore", on_ddl="ignore")
    with call(engine) as context:
        ignoring([truncate, ddl], context)
    assert rows(engine, goods) == {2: "b"}


def test_settings_that_cannot_be_right_are_refused(engine: Engine, goods: Table) -> None:
    keyless = Table("keyless", MetaData(), Column("id", sa.Integer))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"on_truncate": "apply"}, "Order the topic by table"),
        ({"on_truncate": "delete"}, "expected refuse, ignore, apply or a function"),
        ({"on_ddl": "apply"}, "expected refuse, ignore or a function"),
        ({"order": "rows"}, "expected one of 'key', 'table', 'source'"),
        ({"tables": []}, "expected one at least"),
        ({"tables": [keyless]}, "a copy needs a primary key"),
        ({"engine": sa.create_mock_engine("mysql://", print)}, "expected an engine of SQLite"),
    ]
    for settings, text in cases:
        given = {"engine": engine, "tables": [goods], "codec": CODEC} | settings
        with pytest.raises(ConfigError, match=text):
            ApplyChanges(**given)


def test_sqlite_does_not_get_decimals_that_it_would_round(tmp_path: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    table = Table(
        "t", MetaData(), Column("id", sa.Integer, primary_key=True), Column("sum", sa.Numeric)
    )
    with pytest.raises(ConfigError, match="SQLite keeps decimals as floats; use Text"):
        ApplyChanges(engine, [table], CODEC)
    engine.dispose()


def test_tables_and_columns_without_a_copy_are_refused(engine: Engine, goods: Table) -> None:
    apply = ApplyChanges(engine, {"shop.goods": goods, "audit": None}, CODEC)
    apply_all(apply, engine, [replace(insert(1, "a"), table="audit", database="any")])
    with pytest.raises(ChangeRefused, match=r"among \['audit', 'shop.goods'\]"):
        apply_all(apply, engine, [insert(1, "a")])
    wide = Change(
        operation=Operation.INSERT, table="goods", database="shop", after={"id": 1, "x": 2}
    )
    with pytest.raises(ChangeRefused, match=r"the copy goods lacks \['x'\]"):
        apply_all(apply, engine, [wide])
    keyless = replace(insert(1, "a"), database="shop", after={"name": "a"})
    message = FakeMessage(CODEC.encode(keyless))
    with call(engine) as context, pytest.raises(ChangeRefused, match="no value of the key's id"):
        apply([message], context)


def test_two_groups_keep_copies_of_one_topic_apart(engine: Engine, goods: Table) -> None:
    other = goods.to_metadata(MetaData(), name="other")
    other.create(engine)
    change = insert(1, "a", position=(1, 0), source="log")
    apply_all(ApplyChanges(engine, [goods], CODEC), engine, [change])
    with engine.begin() as connection:
        context = Call(connection)
        context.consumer_group = "another"
        ApplyChanges(engine, {"goods": other}, CODEC)(messages_of([change]), context)
    assert rows(engine, goods) == rows(engine, other) == {1: "a"}


KEY = UUID("6f1e4b0e-0f6c-4d5f-9a06-1a8a25e4a9d1")
VALUES: list[tuple[Any, Any, Any]] = [
    (sa.Boolean(), True, True),
    (sa.Boolean(), 0, False),
    (sa.BigInteger(), -(2**63), -(2**63)),
    (sa.Integer(), Decimal(5), 5),
    (sa.Float(), 0.1, 0.1),
    (sa.Text(), "größe 小", "größe 小"),
    (sa.Text(), Decimal("1234567890123456789.10"), "1234567890123456789.10"),
    (sa.Text(), 2**63 - 1, str(2**63 - 1)),
    (sa.LargeBinary(), bytes(range(256)), bytes(range(256))),
    (sa.Date(), date(2020, 2, 29), date(2020, 2, 29)),
    (sa.DateTime(), datetime(2020, 2, 29, 1, 2, 3, 4), datetime(2020, 2, 29, 1, 2, 3, 4)),
    (sa.Time(), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (sa.Interval(), timedelta(days=3, microseconds=1), timedelta(days=3, microseconds=1)),
    (sa.Uuid(), KEY, KEY),
    (sa.Uuid(), str(KEY), KEY),
    (sa.JSON(), '{"a": [1, null]}', {"a": [1, None]}),
    (sa.JSON(), {"a": 1}, {"a": 1}),
    (sa.JSON(), "null", None),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_a_value_becomes_what_its_column_takes(
    engine: Engine, kind: Any, value: Any, expected: Any
) -> None:
    table = Table("t", MetaData(), Column("id", sa.Integer, primary_key=True), Column("v", kind))
    table.create(engine)
    apply = ApplyChanges(engine, [table], CODEC)
    changes = [
        Change(operation=Operation.INSERT, table="t", after={"id": 1, "v": value}),
        Change(operation=Operation.INSERT, table="t", after={"id": 2, "v": None}),
    ]
    apply_all(apply, engine, changes)
    with engine.connect() as connection:
        found = connection.execute(select(table).order_by("id")).all()
        nulls = connection.scalars(select(table.c.id).where(table.c.v.is_(sa.null()))).all()
    assert found == [(1, expected), (2, None)]
    assert nulls == [2]


def test_moments_with_a_zone_stay_the_same_moment(engine: Engine) -> None:
    kind = sa.DateTime(timezone=True)
    table = Table("t", MetaData(), Column("id", sa.Integer, primary_key=True), Column("v", kind))
    table.create(engine)
    codec = CanalCodec(time_zone=ZoneInfo("Asia/Shanghai"))
    row = {"id": 1, "v": datetime(2020, 5, 13, 12, tzinfo=ZoneInfo("America/New_York"))}
    body = codec.encode(Change(operation=Operation.INSERT, table="t", after=row))
    with call(engine) as context:
        ApplyChanges(engine, [table], codec)([FakeMessage(body)], context)
    with engine.connect() as connection:
        found = connection.scalar(select(table.c.v))
    # SQLite keeps no zone: what is in it is UTC.
    assert found.replace(tzinfo=found.tzinfo or UTC) == row["v"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (sa.Integer(), Decimal("1.5"), "not whole"),
        (sa.Integer(), "5", "got str"),
        (sa.Boolean(), 2, "expected 0 or 1"),
        (sa.Text(), b"\x00", "got bytes"),
        (sa.LargeBinary(), "AQ==", "got str"),
        (sa.Date(), datetime(2020, 1, 1), "got datetime"),
        (sa.DateTime(), 1529507596945104, "got int"),
        (sa.DateTime(), datetime(2020, 1, 1, tzinfo=UTC), "it has a zone"),
        (sa.DateTime(timezone=True), datetime(2020, 1, 1), "no zone"),
        (sa.Time(), timedelta(hours=-1), "got timedelta"),
        (sa.JSON(), "{", "unexpected end"),
        (sa.Uuid(), "x", "badly formed"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(
    engine: Engine, kind: Any, value: Any, text: str
) -> None:
    table = Table("t", MetaData(), Column("id", sa.Integer, primary_key=True), Column("v", kind))
    table.create(engine)
    change = Change(operation=Operation.INSERT, table="t", after={"id": 1, "v": value})
    with pytest.raises(ChangeRefused, match=rf"t\.v: .*{text}"):
        apply_all(ApplyChanges(engine, [table], CODEC), engine, [change])


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_any_history_in_any_batches_and_repeats_gives_the_source(
    engine: Engine, goods: Table, seed: int, by_key: bool
) -> None:
    pick = random.Random(seed)
    source: dict[int, str] = {}
    history: list[Change] = []
    for step in range(300):
        number, told = pick.randrange(12), {"position": (step, 0), "source": "log"}
        if number in source and pick.random() < 0.4:
            del source[number]
            history.append(delete(number, **told))
        else:
            source[number] = f"v{step}"
            history.append(insert(number, source[number], **told))
    apply = ApplyChanges(engine, [goods], CODEC, by_key=by_key)
    # As stored: now and then a reader that was killed sends its last changes again.
    stored: list[Change] = []
    at = 0
    while at < len(history):
        stored.extend(history[max(at - pick.randrange(20), 0) : at + 20])
        at += 20
    messages = messages_of(stored)
    at = 0
    while at < len(messages):
        size = pick.randrange(1, 30)
        for _ in range(pick.choice([1, 1, 2]) if by_key else 1):  # a batch may be delivered twice
            with call(engine) as context:
                apply(messages[at : at + size], context if not by_key else Call())
        at += size
    assert rows(engine, goods) == source
    assert sum(apply.statistics["goods"].changes.values()) == len(history)
