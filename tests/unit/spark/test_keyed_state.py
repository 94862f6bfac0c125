"""The state of a queue's keys in memory, compared with a dict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ordermq.spark.stages import keyed_state
from ordermq.spark.stages.keyed_state import KeyedState
from ordermq.spark.stages.rows_by_key import key_name

SCHEMA = pa.schema([("key", pa.string()), ("seen", pa.int64()), ("name", pa.string())])
State = tuple[int | None, str | None]


def rows(states: dict[str, State]) -> Any:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(states), pa.string()),
            pa.array([state[0] for state in states.values()], pa.int64()),
            pa.array([state[1] for state in states.values()], pa.string()),
        ],
        schema=SCHEMA,
    )


def states(batch: Any) -> dict[str, State]:
    found = {row["key"]: (row["seen"], row["name"]) for row in batch.to_pylist()}
    assert len(found) == batch.num_rows
    return found


STATES = st.tuples(st.none() | st.integers(0, 9), st.none() | st.text(max_size=2))
CALLS = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), STATES, max_size=8), max_size=12)


@given(CALLS, st.sampled_from([0, 2, 4_096]), st.integers(0, 12))
def test_states_are_those_of_a_dict(
    calls: list[dict[str, State]], garbage: int, saved_after: int
) -> None:
    before, keyed_state._MIN_GARBAGE = keyed_state._MIN_GARBAGE, garbage
    try:
        state, wanted, changed = KeyedState(SCHEMA, {"seen": 7}), {}, {}
        for number, call in enumerate(calls):
            state.put(rows(call))
            wanted = {k: v for k, v in (wanted | call).items() if v != (None, None)}
            changed |= call
            if number == saved_after:
                state.forget_changes()
                changed = {}
            asked = pa.array(list("hgfedcbaz"))
            assert list(states(state.get(asked)).items()) == [
                (key, wanted.get(key, (7, None))) for key in "hgfedcbaz"
            ]
            assert len(state) == len(wanted)
            assert states(state.changes()) == changed
        assert states(state.everything()) == wanted
        assert states(state.changes()) == changed
    finally:
        keyed_state._MIN_GARBAGE = before


@given(CALLS, CALLS)
def test_a_state_is_what_its_stored_changes_make(
    first: list[dict[str, State]], later: list[dict[str, State]]
) -> None:
    state, stored = KeyedState(SCHEMA), []
    for calls in (first, later):
        for call in calls:
            state.put(rows(call))
        stored.append(state.changes())
        state.forget_changes()
    loaded = KeyedState(SCHEMA)
    for changes in stored:
        loaded.load(changes)
    assert states(loaded.everything()) == states(state.everything())
    assert loaded.changes().num_rows == 0


def test_nothing_is_asked_and_stored_in_an_empty_call() -> None:
    state = KeyedState(SCHEMA)
    state.put(rows({}))
    assert state.get(pa.array([], pa.string())).num_rows == 0
    assert state.everything().num_rows == state.changes().num_rows == 0


def test_the_hour_that_comes_twice_has_two_states() -> None:
    hour_us, zone = 3_600_000_000, pa.timestamp("us", tz="Europe/Berlin")
    # 02:30 in summer time, and 02:30 an hour later.
    first_us = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp() * 1_000_000)
    keys = pa.array([first_us, first_us + hour_us], zone)
    state = KeyedState(pa.schema([("key", zone), ("seen", pa.int64())]))
    state.put(pa.RecordBatch.from_arrays([keys, pa.array([1, 2])], schema=state.schema))
    assert state.get(keys).column("seen").to_pylist() == [1, 2]
    assert state.everything().column("key").equals(keys)
    state.put(pa.RecordBatch.from_arrays([keys[1:], pa.nulls(1, pa.int64())], schema=state.schema))
    assert state.get(keys).column("seen").to_pylist() == [1, None]
    assert state.changes().column("key").equals(keys)
    assert len({key_name(key) for key in keys.to_pylist()}) == 2


def test_changing_the_same_keys_again_and_again_needs_no_more_memory() -> None:
    state = KeyedState(SCHEMA)
    for number in range(300):
        state.put(rows({f"k{key}": (number, "x") for key in range(100)}))
    assert len(state) == 100
    assert state.n_bytes < 400_000
