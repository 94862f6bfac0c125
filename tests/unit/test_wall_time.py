"""Times and lengths of time as users give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ordermq.errors import ConfigError
from ordermq.wall_time import moment_ms, span_ms, time_of_age

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
        (datetime(2023, 11, 14, 22, 13, 20, 33_000, tzinfo=UTC), NOW_MS + 33),
        (datetime(2023, 11, 15, 6, 13, 20, tzinfo=timezone(timedelta(hours=8))), NOW_MS),
    ],
)
def test_a_time_is_ms_an_age_or_a_datetime(moment: Any, at_ms: int) -> None:
    assert moment_ms("timestamp_ms", moment, NOW_MS) == at_ms


@pytest.mark.parametrize("moment", [1.5, True, "yesterday", "2", None, timedelta(1)])
def test_what_is_no_time_is_refused_with_what_is_one(moment: Any) -> None:
    with pytest.raises(
        ConfigError, match="expected ms since 1970 as an int, a datetime, or an age"
    ):
        moment_ms("timestamp_ms", moment, NOW_MS)


def test_the_time_of_an_age_is_exact() -> None:
    for millisecond in range(1_000):
        found = time_of_age("2 h", NOW_MS + millisecond)
        assert found == datetime(2023, 11, 14, 20, 13, 20, millisecond * 1_000, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "2", "first", "99999999d", "999999999999d"])
def test_what_is_no_age_or_begins_before_the_year_1_has_no_time(text: str) -> None:
    assert time_of_age(text, NOW_MS) is None


def test_seconds_are_told_from_ms() -> None:
    with pytest.raises(ConfigError, match="this looks like seconds"):
        moment_ms("timestamp_ms", 1_700_000_000, NOW_MS)
