"""The examples of docs/spark-guide.md, run one after the other as they stand."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ordermq import Message, Producer
from ordermq.cdc import Change, DebeziumCodec, Operation
from tests.component.docs_examples import DOCS, examples
from tests.spark.conftest import Broker

PAGE = (DOCS / "spark-guide.md").read_text()
# The examples from here on start streams: the long leg runs them.
FIRST_STREAM = "## Stream into files"
SALES = [("ann", 3.0), ("bob", 4.0), ("ann", 5.0), ("cid", 1.5), ("bob", 0.5)]


@pytest.fixture
def names(broker: Broker, producer: Producer) -> dict[str, Any]:
    """The names of the running program, with messages to read."""
    for customer, amount in SALES:
        body = json.dumps({"customer": customer, "amount": amount}).encode()
        producer.send(Message("orders", body), sharding_key=customer)
    for number, price in ((1, "2.50"), (2, "0.99"), (1, "3.00")):
        row = {"id": number, "name": "pear", "price": Decimal(price)}
        change = Change(
            operation=Operation.INSERT, database="shop", table="goods", key_columns=("id",),
            after=row,
        )  # fmt: skip
        body = DebeziumCodec().encode(change)
        producer.send(Message("changes", body), sharding_key=change.sharding_key())
    # As a program's: Spark pickles the functions of a module by their name, and this one has none.
    return {"__name__": "__main__"}


def run(page: str, names: dict[str, Any], broker: Broker, folder: Path) -> None:
    code = page.replace("127.0.0.1:9876", broker.name_servers)
    code = code.replace('"/data', f'"{folder}')
    for block in examples(code):
        # With the page's line numbers, for the stacks of an error or a time-out.
        above = "\n" * code[: code.index(block)].count("\n")
        exec(compile(above + block, "spark-guide.md", "exec"), names)


@pytest.mark.usefixtures("spark")
def test_the_examples_of_batches_run(
    names: dict[str, Any], broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(PAGE.partition(FIRST_STREAM)[0], names, broker, tmp_path)
    assert_batches(names)
    assert "'north'" in capsys.readouterr().out


def test_every_example_runs(
    spark: Any, names: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    import deltalake  # only the long leg has it

    try:
        run(PAGE, names, broker, tmp_path)
        # The first batch again: the table has it.
        names["append"](names["sales"].select("sharding_key", "offset", "amount"), 0)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert_batches(names)
    numbers = sorted((row.sharding_key, row.number) for row in names["numbers"])
    assert numbers == [("ann", 0), ("ann", 1), ("bob", 0), ("bob", 1), ("cid", 0)]
    assert spark.read.parquet(f"{tmp_path}/orders").count() == len(SALES)
    saved = spark.read.parquet(f"{tmp_path}/amounts").collect()
    assert sorted((row.sharding_key, row.amount) for row in saved) == sorted(SALES)
    lake = deltalake.DeltaTable(f"{tmp_path}/amounts.delta").to_pyarrow_table().to_pylist()
    assert sorted((row["sharding_key"], row["amount"]) for row in lake) == sorted(SALES)
    goods = [(1, "pear", Decimal("3.00")), (2, "pear", Decimal("0.99"))]
    assert sorted(map(tuple, names["in_parquet"].read(spark).collect())) == goods
    lake = deltalake.DeltaTable(f"{tmp_path}/goods.delta").to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in lake) == goods
    counts = spark.read.format("ordermq").options(**names["servers"], topic="counts").load()
    last = {row.sharding_key: int(bytes(row.body)) for row in counts.orderBy("offset").collect()}
    assert last == {"ann": 2, "bob": 2, "cid": 1}


def test_nan_becomes_null_where_the_page_says_so(spark: Any) -> None:
    import pyspark.sql.functions as F

    frame = spark.range(1).select(F.lit(float("nan")).alias("amount"))
    returned = frame.mapInPandas(lambda frames: frames, "amount DOUBLE")
    assert returned.first().amount is None
    assert returned.select(F.to_json(F.struct("amount"))).first()[0] == "{}"
    kept = F.to_json(F.struct("amount"), {"ignoreNullFields": "false"})
    assert returned.select(kept).first()[0] == '{"amount":null}'


@pytest.mark.usefixtures("spark")
def test_the_cell_of_the_page_about_notebooks_counts_a_topic(
    broker: Broker, producer: Producer, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        producer.send(Message("readings", b"%d" % number), sharding_key="s-1")
    (cell,) = examples((DOCS / "notebooks.md").read_text().partition("## Spark in a notebook")[2])
    exec(cell, {"servers": broker.name_servers})
    assert capsys.readouterr().out == "3\n"


def assert_batches(names: dict[str, Any]) -> None:
    reader = names["spark"].read.format("ordermq").options(**names["servers"], topic="capitals")
    capitals = sorted((row.sharding_key, bytes(row.body)) for row in reader.load().collect())
    wanted = [(name, json.dumps({"customer": name, "amount": n}).upper()) for name, n in SALES]
    assert capitals == sorted((name, text.encode()) for name, text in wanted)
    totals = [(row.customer, row.total) for row in names["top"].collect()]
    assert totals == [("ann", 8.0), ("bob", 4.5), ("cid", 1.5)]
    found = {
        row.sharding_key: row.difference for row in names["changed"].collect() if row.difference
    }
    assert found == {"ann": 2.0, "bob": -3.5}
