"""The columns of the source, for Arrow and for Spark, and the stamp properties of the sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ordermq.errors import ConfigError
from ordermq.model.arrow import COLUMNS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from ordermq.spark.options import SourceOptions

# The id of the run that read the row, null in a batch read; 8 bytes per row. `session.py` tells
# what a stage does with it.
LEASE_COLUMN: Final = "lease"

# The properties by which the sink stamps a message with its origin, and `drop_repeats` finds
# repeated ones. Their names are part of the data in users' topics: never change them.
STAMP_SOURCE: Final = "omq_source"  # topic@broker/queue, or the partition of a query
STAMP_UNORDERED: Final = "~"  # before a source whose stamps do not rise; no topic begins with it
# The offset in the source; without one the micro-batch, or in a batch write the row.
STAMP_SEQUENCE: Final = "omq_offset"
STAMP_ROW: Final = "omq_row"  # counts rows of one offset or micro-batch; left out where it is 0

# The column of the keys whose messages are in order.
SHARDING_KEY: Final = "sharding_key"

# The columns that tell where a row comes from, in the order that sorts rows of several queues.
ORIGIN_COLUMNS: Final = ("topic", "broker", "queue_id", "offset")

# Told by Spark's own metadata of the column, because that stays with it through a plan: an option
# of the source does not reach a stage on Spark Connect.
_SPLIT: Final = "not in order: read with min_partitions"

_DDL: Final[dict[str, str]] = {
    "topic": "STRING",
    "broker": "STRING",
    "queue_id": "INT",
    "offset": "BIGINT",
    "sharding_key": "STRING",
    "keys": "STRING",
    "tags": "STRING",
    "body": "BINARY",
    "properties": "MAP<STRING, STRING>",
    "born_timestamp": "TIMESTAMP",
    "store_timestamp": "TIMESTAMP",
    "message_id": "STRING",
    "reconsume_times": "INT",
    LEASE_COLUMN: "BIGINT",
}


def spark_ddl(
    columns: tuple[str, ...] = COLUMNS, *, is_ordered: bool = False, is_split: bool = False
) -> str:
    """Return the schema as DDL text for Spark.

    Args:
        is_ordered: append the lease column.
        is_split: several tasks read one queue; `is_split_source` tells it by the schema.
    Raises: ConfigError: see `model.arrow.checked_columns`.
    """
    names = (*arrow_schema(columns).names, *((LEASE_COLUMN,) if is_ordered else ()))
    comments = {"offset": f" COMMENT '{_SPLIT}'"} if is_split else {}
    return ", ".join(f"`{name}` {_DDL[name]}{comments.get(name, '')}" for name in names)


def check_given(names: Sequence[str], options: SourceOptions) -> None:
    """Refuse a schema that the user gave with other columns than the source has.

    Raises: ConfigError: names the option to give instead.
    """
    own = [*options.columns, *((LEASE_COLUMN,) if options.is_ordered else ())]
    if list(names) != own:
        raise ConfigError(
            "the format has a schema of its own: leave .schema(...) out, and choose columns by "
            f"option columns='offset,body'. It has {', '.join(own)}; given is {', '.join(names)}"
        )


def is_split_source(fields: Iterable[StructField]) -> bool:
    """Return whether the column `offset` is of a source whose queues several tasks read."""
    return any(one.name == "offset" and one.metadata.get("comment") == _SPLIT for one in fields)


def by_own_names(names: Iterable[str], own: Iterable[str]) -> list[str]:
    """Return column names, with our own where one is written in another case.

    Spark takes a name in any case, and a column keeps the case in which a query wrote it.

    Raises: ConfigError: two columns are one of our own names.
    """
    given = list(names)
    written = {name.lower(): name for name in own if name not in given}
    found = [written.get(name.lower(), name) for name in given]
    for name in written.values():
        if found.count(name) > 1:
            both = " and ".join(repr(each) for each in given if each.lower() == name.lower())
            raise ConfigError(
                f"the DataFrame has no column {name!r}, but {both}: rename the one that is meant "
                f"to {name}, and the other one to something else"
            )
    return found


# Cached: a task asks for it once per queue.
@cache
def source_schema(columns: tuple[str, ...] = COLUMNS, *, is_ordered: bool = False) -> pa.Schema:
    """Return the Arrow schema of the record batches; one object per choice of columns.

    Raises: ConfigError: see `model.arrow.checked_columns`.
    """
    schema = arrow_schema(columns)
    return schema.append(pa.field(LEASE_COLUMN, pa.int64())) if is_ordered else schema
