"""Keep the running total of each key on Spark, by column and exactly, over restarts.

Bodies are amounts as text. The totals are kept beside the message queues, in a directory that
driver and executors share, and go on from one micro-batch to the next and from one start to the
next.

    pip install 'ordermq[spark]'
    python examples/keyed_state_on_spark.py --name-servers 127.0.0.1:9876 --topic amounts \
        --folder /shared/totals
"""

from __future__ import annotations

import argparse

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from ordermq.spark import apply_with_keyed_state, register, stored_states


def add_up(rows: pd.DataFrame, states: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Add amounts of one queue, of many keys; `states` has a row per key of these."""
    amounts = rows.body.astype(int).groupby(rows.sharding_key, sort=False)
    rows["total"] = amounts.cumsum() + rows.sharding_key.map(states.total)
    states["total"] += amounts.sum()
    return rows.filter(["sharding_key", "queue_id", "offset", "total"]), states


def with_totals(messages: DataFrame, directory: str) -> DataFrame:
    """Return each message's place and the total of its key up to it."""
    return apply_with_keyed_state(
        messages.where("sharding_key IS NOT NULL"),
        add_up,
        schema="sharding_key STRING, queue_id INT, offset BIGINT, total BIGINT",
        state_schema="total BIGINT",
        initial={"total": 0},
        directory=directory,
    )


def run(spark: SparkSession, messages: DataFrame, folder: str) -> None:
    """Process what is in the topic now; the next run goes on from there."""
    query = (
        with_totals(messages, f"{folder}/states")
        .writeStream.format("json")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/totals")
    )
    query.awaitTermination()


def main() -> None:
    """Process what is in the topic now, and print the totals."""
    parser = argparse.ArgumentParser(description="Keep running totals of a topic's keys.")
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--folder", required=True, help="shared by driver and executors")
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    options = {"name_servers": given.name_servers, "topic": given.topic, "group": "totals"}
    source = spark.readStream.format("ordermq").options(**options)
    run(spark, source.option("starting_offsets", "earliest").load(), given.folder)
    print(stored_states(f"{given.folder}/states").to_pandas())


if __name__ == "__main__":
    main()
