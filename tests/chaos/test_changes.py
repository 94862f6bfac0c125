"""Appliers of changes that are killed within a transaction of the copy's database."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import Engine, text

from ordermq import Message, Producer
from ordermq.cdc import Change, Operation
from tests.chaos.applier import CODEC, PLACES, TABLE, TOPIC
from tests.chaos.conftest import Stage

KEYS = 8
CHANGES = 80
# The database's own record of each row that was written.
RECORD = {
    "sqlite": [
        "CREATE TABLE record (nth INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, name TEXT)",
        *(
            f"CREATE TRIGGER at_{verb} AFTER {verb} ON goods BEGIN "
            "INSERT INTO record (id, name) VALUES (new.id, new.name); END"
            for verb in ("INSERT", "UPDATE")
        ),
    ],
    "postgresql": [
        "CREATE TABLE record (nth bigserial PRIMARY KEY, id int, name text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO record (id, name) VALUES (NEW.id, NEW.name); RETURN NULL; END $$",
        "CREATE TRIGGER noted AFTER INSERT OR UPDATE ON goods FOR EACH ROW EXECUTE FUNCTION note()",
    ],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [2_000], indirect=True)
@pytest.mark.parametrize("order", ["queue", "key"])
def test_an_applier_killed_within_a_transaction_leaves_each_change_once_and_in_order(
    stage: Stage, engine: Engine, order: str
) -> None:
    TABLE.create(engine)
    with engine.begin() as connection:
        for statement in RECORD[engine.dialect.name]:
            connection.execute(text(statement))
    names: dict[int, list[str]] = {key: [] for key in range(KEYS)}
    with Producer("p", name_servers=stage.address, default_topic_queue_nums=2) as producer:
        for number in range(CHANGES):
            row: dict[str, Any] = {"id": number % KEYS, "name": f"v{number}"}
            names[row["id"]].append(row["name"])
            change = Change(operation=Operation.UPDATE, table="goods", before=row, after=row)
            producer.send(Message(TOPIC, CODEC.encode(change)), sharding_key=f"goods {row['id']}")

    def start(place: str) -> Any:
        database = engine.url.render_as_string(hide_password=False)
        return stage.start_child("tests.chaos.applier", stage.address, database, order, place)

    for place in PLACES:
        child = start(place)
        assert child.process.stdout.readline().strip() == place
        child.kill()
    start("nowhere")

    def record() -> dict[int, list[str]]:
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT id, name FROM record ORDER BY id, nth"))
            return {key: [row.name for row in of] for key, of in groupby(rows, lambda row: row.id)}

    stage.wait_until(lambda: sum(map(len, record().values())) >= CHANGES, "all changes")
    assert record() == names
