"""Times and lengths of time as users give them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ordermq.cli.place import parse_time
from ordermq.config import RebalanceConfig
from ordermq.errors import ConfigError
from ordermq.model.message import Message
from ordermq.spark.options import SourceOptions
from ordermq.wall_time import moment_ms, span_ms, time_of, wall_ms_of

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("span", "duration_ms"),
    [
        (0, 0),
        (250, 250),
        ("250ms", 250),
        ("3s", 3_000),
        (" 3 s ", 3_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        (timedelta(seconds=1.5), 1_500),
    ],
)
def test_a_length_of_time_is_ms_a_text_with_a_unit_or_a_timedelta(
    span: Any, duration_ms: int
) -> None:
    assert span_ms("timeout_ms", span) == duration_ms


@pytest.mark.parametrize(
    "span", [3.0, True, "3", "s", "", "3 x", "-3s", "1.5s", "3ss", "\u0663s", "9" * 13 + "s", None]
)
def test_what_is_no_length_of_time_is_refused_with_what_is_one(span: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"timeout_ms=.*expected ms as an int, a text with a unit"
    ):
        span_ms("timeout_ms", span)


@pytest.mark.parametrize("span", [-1, timedelta(seconds=-1)])
def test_a_negative_length_of_time_is_refused(span: Any) -> None:
    with pytest.raises(ConfigError, match="expected 0 or more"):
        span_ms("timeout_ms", span)


@pytest.mark.parametrize(
    ("moment", "at_ms"),
    [
        (NOW_MS - 5, NOW_MS - 5),
        ("2h", NOW_MS - 7_200_000),
        ("15m", NOW_MS - 900_000),
        (timedelta(minutes=15), NOW_MS - 900_000),
        ("2023-11-14T22:13:20+00:00", NOW_MS),
        (" 2023-11-15 06:13:20+08:00 ", NOW_MS),
        (datetime(2023, 11, 14, 22, 13, 20, 33_000, tzinfo=UTC), NOW_MS + 33),
        (datetime(2023, 11, 15, 6, 13, 20, tzinfo=timezone(timedelta(hours=8))), NOW_MS),
    ],
)
def test_a_time_is_ms_an_age_or_a_datetime(moment: Any, at_ms: int) -> None:
    assert moment_ms("timestamp_ms", moment, NOW_MS) == at_ms


@pytest.mark.parametrize(
    "moment",
    [1.5, True, "yesterday", "2", "20231114", "", None, timedelta(-1), float("nan"), 1e300],
)
def test_what_is_no_time_is_refused_with_what_is_one(moment: Any) -> None:
    with pytest.raises(
        ConfigError, match="expected ms since 1970 as an int, a datetime or one as a text"
    ):
        moment_ms("timestamp_ms", moment, NOW_MS)


def test_the_time_of_an_age_is_exact() -> None:
    for millisecond in range(1_000):
        found = time_of("2 h", NOW_MS + millisecond)
        assert found == datetime(2023, 11, 14, 20, 13, 20, millisecond * 1_000, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "2", "first", "99999999d", "999999999999d"])
def test_what_is_no_time_or_begins_before_the_year_1_has_no_time(text: str) -> None:
    assert time_of(text, NOW_MS) is None


def test_seconds_are_told_from_ms() -> None:
    with pytest.raises(ConfigError, match="this looks like seconds"):
        moment_ms("timestamp_ms", 1_700_000_000, NOW_MS)


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine five hours west of UTC."""
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# What a newcomer does with a table of times, in each place that takes a time.
LOCAL = "2023-11-14T17:13:20"  # NOW_MS in New York


@pytest.mark.usefixtures("new_york")
def test_a_time_without_a_zone_is_this_machines_in_every_place() -> None:
    naive = datetime.fromisoformat(LOCAL)
    pandas_time = pd.Timestamp(LOCAL)
    for moment in (LOCAL, naive, pandas_time, pandas_time.tz_localize("America/New_York")):
        assert moment_ms("timestamp_ms", moment, 0) == NOW_MS
        found = time_of(moment, 0)
        assert found is not None
        assert found.timestamp() * 1_000 == NOW_MS
        start = RebalanceConfig(consume_from_where="timestamp", consume_timestamp_ms=moment)  # type: ignore[arg-type]
        assert start.consume_timestamp_ms == NOW_MS
        read = SourceOptions.of(
            {"name_servers": "b:1", "topic": "t", "starting_timestamp": str(moment)}
        )
        assert read.batch_start().timestamp_ms == NOW_MS
    assert Message("t", b"1", deliver_at_ms=pandas_time).deliver_at_ms == NOW_MS  # type: ignore[arg-type]
    assert parse_time(LOCAL).timestamp() * 1_000 == NOW_MS


@pytest.mark.usefixtures("new_york")
def test_the_second_of_two_equal_local_times_is_told_by_its_fold() -> None:
    first, second = (datetime(2023, 11, 5, 1, 30, fold=fold) for fold in (0, 1))
    assert wall_ms_of(second) - wall_ms_of(first) == 3_600_000
    assert wall_ms_of(pd.Timestamp(second)) == wall_ms_of(second)


def test_numbers_of_numpy_and_lengths_of_pandas_are_taken() -> None:
    assert moment_ms("timestamp_ms", np.int64(NOW_MS), 0) == NOW_MS  # type: ignore[arg-type]
    assert moment_ms("timestamp_ms", pd.Timedelta("5m"), NOW_MS) == NOW_MS - 300_000
    assert span_ms("timeout_ms", np.int64(250)) == 250  # type: ignore[arg-type]
    for none in (pd.NaT, np.bool_(True), np.datetime64("2023-11-14")):
        with pytest.raises(ConfigError, match=r"^timestamp_ms=.*expected ms since 1970"):
            moment_ms("timestamp_ms", none, NOW_MS)


def test_a_number_of_another_unit_is_told_what_to_write() -> None:
    with pytest.raises(ConfigError, match="looks like seconds: write 1700000000250"):
        moment_ms("timestamp_ms", 1_700_000_000.25, NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="looks like seconds: write 1700000000250"):
        Message("t", b"1", deliver_at_ms=1_700_000_000.25)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"; write 1700000000000$"):
        moment_ms("timestamp_ms", float(NOW_MS), NOW_MS)  # type: ignore[arg-type]
    for number in (NOW_MS * 1_000, NOW_MS * 1_000_000):
        with pytest.raises(ConfigError, match="looks like microseconds or nanoseconds"):
            moment_ms("timestamp_ms", number, NOW_MS)


def test_an_age_of_a_setting_is_kept_as_one() -> None:
    for age, kept in ((timedelta(minutes=5), "300000ms"), (timedelta(0), "0ms"), ("5m", "5m")):
        start = RebalanceConfig(consume_from_where="timestamp", consume_timestamp_ms=age)  # type: ignore[arg-type]
        assert start.consume_timestamp_ms == kept
