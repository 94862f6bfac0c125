"""Arrow schemas of the rows that Python functions give back to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ordermq.spark.session import is_on
from ordermq.spark.versions import is_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def arrow_schema_of(schema: StructType, *, is_large: bool = False) -> Any:
    """Return the Arrow schema of the rows of a task.

    Args: is_large: texts and bytes with 64-bit positions.
    """
    # Imported here: what is tested without PySpark imports this file, too.
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before Spark 4.2 there is no such argument, and UTC is meant.
    zone: dict[str, str] = {} if is_before((4, 2)) else {"timezone": "UTC"}
    plain = to_arrow_schema(schema, prefers_large_types=is_large, **zone)
    # Rebuilt without Spark's "not null" and metadata: batches are compared with it exactly.
    return pa.schema([pa.field(one.name, one.type) for one in plain])


def group_schema(spark: SparkSession, schema: StructType) -> Any:
    """Return the Arrow schema of the rows of a group, in `applyInArrow`.

    Of these Spark compares the types, and it takes them otherwise than it gives them: timestamps
    come in the session's zone and go in UTC.
    """
    are_large = is_on(spark, "spark.sql.execution.arrow.useLargeVarTypes")
    # Before Spark 4.3 texts and bytes come with the setting's types, too, and go with plain ones.
    return arrow_schema_of(schema, is_large=are_large and not is_before((4, 3)))
