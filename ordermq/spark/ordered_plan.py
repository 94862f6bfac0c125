"""What the driver must know before it plans a stage: session settings, and the source behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ordermq.errors import ConfigError
from ordermq.spark.stages.rows import missing_places

FORMAT = "ordermq"


def check_columns(frame: DataFrame, *more: str) -> None:
    """Refuse a DataFrame without the columns an ordered stage reads.

    Raises: ConfigError: names them.
    """
    missing = missing_places(frame.columns)
    missing += [name for name in more if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {', '.join(missing)}: an ordered stage reads topic, "
            f"broker, queue_id and offset{' and its key' if more else ''}. Keep them until "
            f"behind the stage; it has {', '.join(frame.columns)}"
        )


def check_speculation(spark: SparkSession, allowed: bool) -> None:
    """Refuse a session that runs two attempts of a task at once.

    Raises: ConfigError: spark.speculation is true.
    """
    if not allowed and spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError(
            "spark.speculation is true: Spark would run two attempts of one task at the same "
            "time, and a slow one would go on after its batch is done. Set it to false, or pass "
            "allow_speculation=True where the function's effects may happen twice and late"
        )


def session_time_zone(spark: SparkSession) -> str:
    """What a timestamp without a zone is meant in."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def source_options(frame: DataFrame) -> list[dict[str, str]]:
    """The options of each ordermq source in a DataFrame's plan; [] where they cannot be seen.

    Spark Connect keeps its plan at the server; a DataFrame of a checkpoint has no source.
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        return []
    leaves = java.queryExecution().analyzed().collectLeaves()
    found = [_options_of(leaves.apply(at)) for at in range(leaves.size())]
    return [options for options in found if options is not None]


def _options_of(leaf: Any) -> dict[str, str] | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelationV2":
        if leaf.sourceName().lower() != FORMAT:
            return None
        return dict(_entries(leaf.extraOptions()))
    if kind == "DataSourceV2Relation":
        if not leaf.table().name().lower().endswith(FORMAT):
            return None
        return dict(_entries(leaf.options()))
    return None


def _entries(java_map: Any) -> Iterator[tuple[str, str]]:
    walk = java_map.asCaseSensitiveMap().entrySet().iterator()
    while walk.hasNext():
        entry = walk.next()
        yield str(entry.getKey()), str(entry.getValue())


def one_source(frame: DataFrame, purpose: str) -> Mapping[str, str]:
    """The options of the only source.

    Args: purpose: what they are needed for, for the error.
    Raises: ConfigError: there is none to be seen, or several that differ.
    """
    found = source_options(frame)
    different = {tuple(sorted(options.items())) for options in found}
    if len(different) == 1:
        return found[0]
    what = "no ordermq source is" if not found else f"{len(different)} ordermq sources are"
    raise ConfigError(
        f"{purpose} needs name servers and account, and {what} to be seen in the DataFrame's "
        "plan: give them as client_options={'name_servers': ..., 'group': ...}"
    )
