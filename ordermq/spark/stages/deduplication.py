"""`drop_repeats`: read once the messages that a Spark sink wrote several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ordermq.errors import ConfigError
from ordermq.spark.row_order import OrderCheck, RowOrigins, check_columns, check_not_split
from ordermq.spark.schema import (
    LEASE_COLUMN,
    SHARDING_KEY,
    STAMP_ROW,
    STAMP_SEQUENCE,
    STAMP_SOURCE,
    STAMP_UNORDERED,
)
from ordermq.spark.shown_errors import text_first

# Columns with the stamp while rows are filtered; the leading underscore keeps them apart from
# the user's.
_STAMP = ("_omq_source", "_omq_offset", "_omq_row")
_LEASE = "_omq_lease"
_REMEDY = "call drop_repeats straight on the source's DataFrame"


def drop_repeats(frame: DataFrame, *, stateful: bool = False) -> DataFrame:
    """Keep the first of the messages that a Spark sink wrote several times; others pass.

    Within a key of one source and a queue the stamps of a sink rise, so a stamp which is not above
    the last one was seen before. Those of a write with order='none' do not rise: its messages
    pass. Rows keep their order.

    Args:
        frame: rows of the ordermq source with the column `properties`, and `sharding_key` where
            keys are used.
        stateful: keep the last stamp of each key over micro-batches, in the state store. It needs
            what `apply_with_state` needs, shuffles, and keeps the order only within a key.
            Without it, repeats are found within one micro-batch (or batch query) and queue.
    Raises: ConfigError: a column is missing; with `stateful`, as `apply_with_state`.
    """
    check_columns(frame)
    if "properties" not in frame.columns:
        raise ConfigError(
            "drop_repeats needs the column `properties`: read the source with it. The stamps are "
            "properties of the messages"
        )
    target = StructType(frame.schema.fields)
    # Looked up by Spark, once per row and natively, instead of in a Python dict per row.
    source = F.col("properties")[STAMP_SOURCE]
    # Anybody may send a message with such properties: what is no number is no stamp.
    sequence, row = (
        F.col("properties")[name].try_cast("bigint") for name in (STAMP_SEQUENCE, STAMP_ROW)
    )
    is_stamp = ~source.startswith(STAMP_UNORDERED) & (sequence >= 0)
    # Between target queues stamps do not rise: `queue_column`, or more queues, may part a source.
    place = [F.col("topic"), F.lit("@"), F.col("broker"), F.lit("/"), F.col("queue_id")]
    in_queue = F.concat(source, F.lit(" in "), *place)
    stamped = frame.withColumns({
        _STAMP[0]: F.when(is_stamp, in_queue),
        _STAMP[1]: sequence,
        _STAMP[2]: F.coalesce(row, F.lit(0)),
    })  # fmt: skip
    has_key = SHARDING_KEY in frame.columns
    if not stateful:
        check_not_split(frame)
        return stamped.mapInArrow(_stage_function(has_key), target)
    # Imported here: it needs pandas and protobuf, which the plain stage does not.
    from ordermq.spark.stages.apply_with_state import apply_with_state

    keys = [_STAMP[0], *([SHARDING_KEY] if has_key else [])]
    state = "sequence bigint, row bigint"
    # It has no effects that may happen twice, or late: so it needs no lease check, for which a
    # Spark Connect client would have to give name servers, and speculation does no harm.
    unleased = stamped.withColumnRenamed(LEASE_COLUMN, _LEASE)
    return apply_with_state(
        unleased, _first_of_key, target, state, key=keys, allow_speculation=True
    )


def _stage_function(has_key: bool) -> Any:
    def stage(batches: Iterator[Any]) -> Iterator[Any]:
        with text_first():
            yield from first_occurrences(batches, has_key)

    return stage


def first_occurrences(batches: Iterator[Any], has_key: bool) -> Iterator[Any]:
    """Return the rows of stamped batches that were not seen before, without their stamps."""
    check = OrderCheck(_REMEDY)
    last: dict[Any, tuple[int, int]] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        # Only for its error: after a shuffle a later stamp could arrive first, and the earlier
        # message would be dropped as a repeat.
        for _ in check.runs(RowOrigins(batch), 0, batch.num_rows):
            pass
        sources, sequences, rows = (batch.column(name).to_pylist() for name in _STAMP)
        keys = batch.column(SHARDING_KEY).to_pylist() if has_key else [None] * batch.num_rows
        kept = []
        for source, key, sequence, row in zip(sources, keys, sequences, rows, strict=True):
            stamp = (sequence, row)
            is_new = source is None or stamp > last.get((source, key), (-1, 0))
            if is_new and source is not None:
                last[source, key] = stamp
            kept.append(is_new)
        own = batch.select([name for name in batch.schema.names if name not in _STAMP])
        yield own if all(kept) else own.filter(pa.array(kept))


def _first_of_key(rows: Any, state: dict[str, int] | None) -> tuple[Any, dict[str, int] | None]:
    """Return the new rows of one source and key, and the last stamp as the new state."""
    own = rows.drop(columns=list(_STAMP)).rename(columns={_LEASE: LEASE_COLUMN})
    # The rows without a stamp, which no sink wrote, are one group: they pass, with no state.
    if rows[_STAMP[0]].isna().any():
        return own, None
    last = (-1, 0) if state is None else (state["sequence"], state["row"])
    kept = []
    for stamp in zip(rows[_STAMP[1]].tolist(), rows[_STAMP[2]].tolist(), strict=True):
        kept.append(stamp > last)
        last = max(last, stamp)
    return own[kept], {"sequence": int(last[0]), "row": int(last[1])}
