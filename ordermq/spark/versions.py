"""Versions of Spark: what not all of them can do, for the code, its errors and docs/spark.md.

The code that needs a `Feature` asks for it, and ci/spark_options.py makes the page's table of
`FEATURES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ordermq.errors import ConfigError
from ordermq.spark.packages import needed_here

Version = tuple[int, int]
VERSIONS: Final[tuple[Version, ...]] = ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3))  # of the page


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that older versions of Spark cannot do.

    Args:
        name: for the error and the page.
        since: the first version that can.
        instead: what to do on an older one.
    """

    name: str
    since: Version
    instead: str


FORMAT: Final = Feature(
    "the format ordermq: batches, streams, SQL, sink, stages, state, lag",
    (4, 0),
    "upgrade Spark, because 3.5 has no data sources in Python; or export with "
    "ordermq.PullConsumer and read the files",
)
PUSHDOWN: Final = Feature(
    "option `pushdown`", (4, 1), "remove it, and give `queues` and `starting_offsets`"
)
ARROW_UDF: Final = Feature(
    'engine="arrow" of `ordered_udf`',
    (4, 1),
    'use engine="pandas", or `apply_in_order`, which has engine="arrow"',
)
STATE_BY_ROW: Final = Feature(
    'form="rows" of `apply_with_state`',
    (4, 1),
    "leave it out: the form for pandas costs more time",
)
BATCHES_OF_AVAILABLE_NOW: Final = Feature(
    "Trigger.AvailableNow in several micro-batches of `max_rows`",
    (4, 2),
    "it makes one micro-batch of at most max_rows: leave max_rows out, or start it again for the "
    "rest; with other triggers max_rows has its effect",
)
END_OF_AVAILABLE_NOW: Final = Feature(
    "Trigger.AvailableNow commits its last offsets and releases its locks when it ends",
    (4, 2),
    "the next run commits them; locks expire, so `release_in_flight='afterPause'` lets the next "
    "run begin at once",
)
PROGRESS_ENDS: Final = Feature(
    "`latestOffset` of a stream's progress as the ends of the queues, with its `@group`",
    (4, 2),
    "use LagListener, which asks the brokers; it names a query by its own name or id",
)
FEATURES: Final = (
    FORMAT,
    PUSHDOWN,
    ARROW_UDF,
    STATE_BY_ROW,
    BATCHES_OF_AVAILABLE_NOW,
    END_OF_AVAILABLE_NOW,
    PROGRESS_ENDS,
)
# Not a feature: from here on Spark tells a stream where a batch begins, and its limit.
ADMISSION: Final[Version] = (4, 2)


def is_before(version: Version) -> bool:
    """Return whether this Spark is older."""
    return _installed()[1] < version


def require(feature: Feature) -> None:
    """Refuse a feature that this Spark is too old for.

    Raises: ConfigError: says which version it needs, and what to do instead.
    """
    if is_before(feature.since):
        needed = ".".join(map(str, feature.since))
        raise ConfigError(
            f"{feature.name.replace('`', '')} needs Spark {needed} or later, and this is "
            f"{_installed()[0]}: {feature.instead.replace('`', '')}"
        )


def _installed() -> tuple[str, Version]:
    # Imported here: what is tested without PySpark imports files that import this one.
    with needed_here():
        import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return pyspark.__version__, (int(major), int(minor))
