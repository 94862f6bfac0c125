"""Dead letters of stages on Spark: what their properties tell."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ordermq.errors import ConfigError, StoreError
from ordermq.model.failure_story import FailureStory
from ordermq.model.message import Message
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.stages import failure_policy, state_store
from ordermq.spark.stages.failure_policy import ParkedKeys, send_dead_letter

QUEUE = MessageQueue("orders", "b", 3)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    found: list[Message] = []
    producer = SimpleNamespace(send=lambda message, sharding_key: found.append(message))
    monkeypatch.setattr(failure_policy, "_PRODUCERS", SimpleNamespace(get=lambda *_: producer))
    return found


def letter(sent: list[Message], properties: Any) -> Message:
    row = {"body": b"x", "offset": 7, "properties": properties}
    client = {"name_servers": "127.0.0.1:9876"}
    send_dead_letter("dead", client, row, QUEUE, "ValueError: \x01 no number")
    return sent[-1]


def test_a_failed_row_tells_of_this_failure_only(sent: list[Message]) -> None:
    before: dict[str, str] = {"color": "red"}
    FailureStory("KeyError: 'a'", 3, 5, "old@b/1", 4, "billing", "m").add_to(before)
    found = letter(sent, before)
    assert found.properties["color"] == "red"
    assert FailureStory.of(found) == FailureStory(
        "ValueError:   no number", queue="orders@b/3", offset=7
    )


def test_a_failed_row_without_room_for_the_error_is_sent_without_it(sent: list[Message]) -> None:
    full = {"color": "x" * 32_700}
    assert dict(letter(sent, full).properties) == full


def test_a_failed_row_keeps_its_keys_and_its_tag(sent: list[Message]) -> None:
    row = {"body": b"x", "offset": 7, "keys": "a b", "tags": "paid"}
    send_dead_letter("dead", {"name_servers": "127.0.0.1:9876"}, row, QUEUE, "ValueError")
    assert (list(sent[-1].keys), sent[-1].tags) == (["a", "b"], "paid")


def test_a_failed_row_of_a_stage_with_pandas_has_whole_arrays_and_numbers(
    sent: list[Message],
) -> None:
    row = {"offset": np.int64(7), "prices": np.arange(2_000)}
    send_dead_letter("dead", {"name_servers": "127.0.0.1:9876"}, row, QUEUE, "ValueError")
    assert json.loads(sent[-1].body) == {"offset": 7, "prices": list(range(2_000))}


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"key": "a"}'])
def test_a_damaged_file_of_a_parked_key_is_named(tmp_path: Path, content: str) -> None:
    parked = ParkedKeys(str(tmp_path))
    parked.park("a", QUEUE, 7, "ValueError")
    (path,) = tmp_path.iterdir()
    ParkedKeys(str(tmp_path)).load()
    path.write_text(content)
    with pytest.raises(StoreError, match="is damaged: restore it, or find its key") as raised:
        ParkedKeys(str(tmp_path)).load()
    assert str(path) in str(raised.value)


def test_a_key_that_two_attempts_park_at_once_is_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft of one is written, and not moved yet, while the other one stores the key."""
    others: list[ParkedKeys] = []
    sync = state_store._sync

    def meet(path: str) -> None:
        if not others:
            others.append(ParkedKeys(str(tmp_path)))
            others[0].park("a", QUEUE, 7, "ValueError")
        sync(path)

    monkeypatch.setattr(state_store, "_sync", meet)
    ParkedKeys(str(tmp_path)).park("a", QUEUE, 7, "ValueError")
    stored = ParkedKeys(str(tmp_path))
    stored.load()
    assert len(others) == len(stored.keys) == len(list(tmp_path.iterdir())) == 1


def test_a_key_that_cannot_be_stored_says_what_to_do_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_store, "_sync", full)
    with pytest.raises(StoreError, match=r"or make room; the batch runs again: .*No space left"):
        ParkedKeys(str(tmp_path)).park("a", QUEUE, 7, "ValueError")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the right to read, write, list and delete there"):
        ParkedKeys(str(tmp_path / "file")).park("a", QUEUE, 7, "ValueError")
    with pytest.raises(ConfigError, match=r"give a scheme that pyarrow.fs knows"):
        ParkedKeys("unknown://host/parked").load()
