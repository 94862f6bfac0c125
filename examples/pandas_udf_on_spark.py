"""Use `pandas_udf` on the messages of a topic in order: the change and the total of amounts.

Bodies are numbers as text. `change` is a plain function, and begins anew with each batch of rows.
`total` is a pandas_udf already, called once per task: its totals go on from one batch of rows to
the next.

    pip install 'ordermq[spark]'
    python examples/pandas_udf_on_spark.py --name-servers 127.0.0.1:9876 --topic amounts
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import DoubleType

from ordermq.spark import ordered_udf, register


@ordered_udf("double")
def change(amount: pd.Series) -> pd.Series:
    return amount.diff()


# A type by its name, "double", would need a session when the file is imported.
@ordered_udf
@pandas_udf(DoubleType())  # type: ignore[untyped-decorator]
def total(columns: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    totals: dict[int, float] = defaultdict(float)  # a task may read several queues
    for queue_id, amount in columns:
        queue = int(queue_id.iloc[0])
        so_far = amount.cumsum() + totals[queue]
        totals[queue] = so_far.iloc[-1]
        yield so_far


def with_totals(messages: DataFrame) -> DataFrame:
    """Add the change and the total to each message's place and amount."""
    amount = F.col("body").cast("string").cast("double")
    return messages.select(
        "queue_id",
        "offset",
        amount.alias("amount"),
        change(amount),
        total("queue_id", amount),
    )


def main() -> None:
    """Show the totals of what is in the topic."""
    parser = argparse.ArgumentParser(description="Show totals of a topic.")
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--topic", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    options = {"name_servers": given.name_servers, "topic": given.topic}
    with_totals(spark.read.format("ordermq").options(**options).load()).show(100)


if __name__ == "__main__":
    main()
