"""The expected aircraft logs, computed by pandas from the whole file at once.

It shares no code with `aircraft_log.py`, so a mistake in one of them shows as a difference. Sums
and shifts per group are enough for most figures; the running ones take one step per event number,
for all aircraft together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from ordermq.cli.demo.aircraft_log import (
    DIGEST_FACTOR,
    DIGEST_PRIME,
    DIVERTED_MIN,
    NOWHERE,
    AircraftLog,
)


def expected_logs(path: Path, limit: int | None = None) -> pd.DataFrame:
    """Return the logs the consumers should have written, indexed by key; takes seconds."""
    flights = _load(path, limit)
    groups = flights.groupby("key", sort=True)
    logs = pd.DataFrame({"events": groups.size()})
    logs["cancelled"] = groups["cancelled"].sum()
    logs["diverted"] = groups["diverted"].sum()
    logs["legs"] = logs["events"] - logs["cancelled"] - logs["diverted"]
    flown = flights[~flights["cancelled"]]
    aircraft = flown.groupby("key", sort=True)
    logs["place"] = aircraft["place"].last()
    logs["base"] = aircraft["origin"].last()
    before = aircraft["origin"].shift()
    logs["moves"] = (before.notna() & (before != flown["origin"])).groupby(flown["key"]).sum()
    # A diversion has no landing, so neither has it a turn-around after it.
    turn = flown["departs"] - aircraft["landed"].shift()
    turns = turn.groupby(flown["key"])
    logs["turns"] = turns.count()
    logs["ground"] = turns.sum()
    logs["shortest"] = turns.min()
    logs["landed"] = flown.drop_duplicates("key", keep="last").set_index("key")["landed"]
    logs["miles"] = aircraft["distance"].sum()
    texts = {"place": "", "base": ""}
    logs = logs.fillna(texts | dict.fromkeys(("moves", "turns", "ground", "shortest", "miles"), 0))
    return logs.join(_running(flights))


def _load(path: Path, limit: int | None) -> pd.DataFrame:
    flights = pd.read_csv(path, nrows=limit)
    day = pd.to_datetime(flights[["year", "month", "day"]]) - pd.Timestamp(2013, 1, 1)
    planned = flights["hour"] * 60 + flights["minute"]
    flights["departs"] = day.dt.days * 1_440 + planned + flights["dep_delay"].fillna(0)
    flights["cancelled"] = flights["dep_delay"].isna()
    flights["diverted"] = flights["arr_delay"].isna() & ~flights["cancelled"]
    flights["place"] = flights["dest"].where(~flights["diverted"], NOWHERE)
    flights["landed"] = flights["departs"] + flights["air_time"]
    flights["row"] = np.arange(len(flights))
    number = flights["carrier"] + "-" + flights["flight"].astype(str)
    flights["key"] = flights["tailnum"].fillna(number)
    return flights.sort_values(["key", "departs", "row"], ignore_index=True)


def _running(flights: pd.DataFrame) -> pd.DataFrame:
    """Return carried, worst and digest per aircraft."""
    # The k-th event of all aircraft in one step: as many steps as the busiest one has events.
    sizes = flights.groupby("key", sort=True).size()
    starts = np.r_[0, np.cumsum(sizes.to_numpy())[:-1]]
    carried, worst, digest = (np.zeros(len(sizes), dtype=np.int64) for _ in range(3))
    late = flights["arr_delay"].fillna(0).to_numpy(dtype=np.int64)
    late[flights["diverted"].to_numpy()] = DIVERTED_MIN
    gone = ~flights["cancelled"].to_numpy()
    row = flights["row"].to_numpy()
    for k in range(int(sizes.max())):
        going = np.flatnonzero(sizes.to_numpy() > k)
        at = starts[going] + k
        carried[going] = np.where(
            gone[at], np.maximum(0, carried[going] // 2 + late[at]), carried[going] // 2
        )
        worst[going] = np.maximum(worst[going], carried[going])
        digest[going] = (digest[going] * DIGEST_FACTOR + row[at] + 1) % DIGEST_PRIME
    return pd.DataFrame({"carried": carried, "worst": worst, "digest": digest}, index=sizes.index)


def differences(expected: pd.DataFrame, logs: list[AircraftLog]) -> list[str]:
    """Return one sentence per aircraft whose log is wrong."""
    names = [name for name in AircraftLog.__slots__ if name != "key"]
    found = pd.DataFrame(
        [{name: getattr(log, name) for name in names} for log in logs],
        index=pd.Index([log.key for log in logs], name="key"),
        columns=names,
    )
    wrong = [f"{key}: no log" for key in expected.index.difference(found.index)]
    wrong += [f"{key}: log of an unknown key" for key in found.index.difference(expected.index)]
    both = expected.index.intersection(found.index)
    unequal: Any = expected.loc[both, names].fillna(-1).astype(str).map(_plain) != found.loc[
        both, names
    ].fillna(-1).astype(str).map(_plain)
    for key in both[unequal.any(axis=1)]:
        columns = [name for name in names if unequal.at[key, name]]
        text = ", ".join(
            f"{name} {_plain(str(found.at[key, name]))} instead of "
            f"{_plain(str(expected.at[key, name]))}"
            for name in columns
        )
        wrong.append(f"{key}: {text}")
    return wrong


def _plain(text: str) -> str:
    return text.removesuffix(".0")
