"""Values of pandas and NumPy in a codec, and errors about others, with their place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ordermq import json_text, standard_json
from ordermq.model.codec import JsonCodec
from ordermq.model.json_types import JsonMismatch

AT = "2026-11-30T09:30:00.000001"


@pytest.fixture(params=["orjson", "standard library"], autouse=True)
def json(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of the two that are behind `json_text`."""
    if request.param != "orjson":
        for name in ("dumps", "loads"):
            monkeypatch.setattr(json_text, name, getattr(standard_json, name))


@dataclass
class Reading:
    sensor: str
    celsius: float
    count: int = 1
    note: str | None = None
    limit: float | None = None
    at: datetime | None = None
    more: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (np.int64(5), b"5"),
        (np.uint8(5), b"5"),
        (np.float64(1.5), b"1.5"),
        (np.float32(0.5), b"0.5"),
        (np.bool_(True), b"true"),
        (np.str_("a"), b'"a"'),
        (np.array([1, 2]), b"[1,2]"),
        (np.array([[0.5], [math.nan]]), b"[[0.5],[null]]"),
        (np.array(["a", None], dtype=object), b'["a",null]'),
        (np.datetime64(AT), f'"{AT}"'.encode()),
        (np.array([AT], "datetime64[ns]"), f'["{AT}"]'.encode()),
        (pd.Timestamp(AT), f'"{AT}"'.encode()),
        (pd.Timestamp(AT, tz="UTC"), f'"{AT}+00:00"'.encode()),
        (np.float64("nan"), b"null"),
        (np.datetime64("NaT", "s"), b"null"),
        (pd.NaT, b"null"),
        (pd.NA, b"null"),
    ],
)
def test_values_of_numpy_and_pandas_are_written_as_what_they_hold(value: Any, body: bytes) -> None:
    assert JsonCodec().encode(value) == body
    assert JsonCodec().encode({"a": [value]}) == b'{"a":[%s]}' % body


def test_rows_of_a_frame_are_written_as_they_are() -> None:
    frame = pd.DataFrame(
        {"sensor": ["a", "b"], "celsius": [1.5, None], "at": pd.to_datetime([AT, None])}
    ).assign(count=pd.array([1, None], dtype="Int64"))
    assert [JsonCodec().encode(row) for row in frame.to_dict("records")] == [
        f'{{"sensor":"a","celsius":1.5,"at":"{AT}","count":1}}'.encode(),
        b'{"sensor":"b","celsius":null,"at":null,"count":null}',
    ]


def test_a_time_of_a_frame_is_read_back() -> None:
    codec = JsonCodec(Reading)
    read = codec.decode(codec.encode(Reading("a", np.float64(2), at=pd.Timestamp(AT, tz="UTC"))))
    assert read == Reading("a", 2.0, at=datetime.fromisoformat(AT).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": timedelta(1)}]}, r"^\$\.a\[1\]\.b: .*timedelta: give .*total_seconds"),
        ({"a": pd.Timedelta(1)}, r"^\$\.a: .*: Timedelta: give .*total_seconds"),
        ([np.timedelta64(1, "s")], r"^\$\[0\]: .*: (numpy.)?timedelta64: give .*total_seconds"),
        (Reading("a", 1.0, more=b"1"), r"^\$\.more: .*: bytes: give a text"),  # type: ignore[arg-type]
        (pd.DataFrame({"a": [1]}), r"^\$: .*: (pandas.*)?DataFrame: give \.to_dict\('records'\)"),
        (object(), r"^\$: .*: object: give a dict"),
        ({"a": {1: 2}}, r"^\$\.a: Dict key must be str: give texts as keys"),
        ({"a": np.complex128(1)}, r"^\$\.a: .*complex128: give a dict"),
    ],
)
def test_what_has_no_form_is_told_with_its_place_and_the_way_out(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        JsonCodec().encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="Recursion"):
        JsonCodec().encode(loop)


@pytest.mark.parametrize(
    ("reading", "place"),
    [
        (Reading("a", math.nan), r"\$\.celsius is nan"),
        (Reading("a", math.inf, limit=math.nan), r"\$\.celsius is inf"),
        (Reading("a", np.float64("nan")), r"\$\.celsius is nan"),
        (Reading("a", pd.NA), r"\$\.celsius is <NA>"),
        (Reading("a", 1.0, count=math.nan), r"\$\.count is nan"),  # type: ignore[arg-type]
        (Reading("a", 1.0, more=(1.0, math.nan)), r"\$\.more\[1\] is nan"),
        (Reading("a", 1.0, more=np.array([1.0, math.nan])), r"\$\.more\[1\] is nan"),  # type: ignore[arg-type]
    ],
)
def test_a_gap_that_the_type_would_refuse_to_read_is_refused_to_write(
    reading: Reading, place: str
) -> None:
    with pytest.raises(JsonMismatch, match=rf"^{place}, .*Reading takes none there: declare"):
        JsonCodec(Reading).encode(reading)
    assert JsonCodec().encode(reading), "without a type a gap is null"


def test_a_gap_that_the_type_takes_is_read_as_none() -> None:
    codec = JsonCodec(Reading)
    written = codec.encode(Reading("null", 1.0, limit=math.nan, at=pd.NaT))
    assert codec.decode(written) == Reading("null", 1.0)
