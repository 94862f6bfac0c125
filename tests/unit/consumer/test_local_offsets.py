"""The offset file of a broadcasting member: Java's form, whole after any crash
(docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.consumer.offsets.local_offsets import OffsetFile, from_text, to_text
from ordermq.errors import ProtocolError, StateError, StoreError
from ordermq.model.message_queue import MessageQueue

VECTORS = Path(__file__).parents[2] / "vectors" / "offsets"
A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 1)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.4.0"])
def test_what_javas_clients_write_is_understood(version: str) -> None:
    text = (VECTORS / f"{version}.json").read_text(encoding="utf-8")
    assert from_text(text) == {
        MessageQueue("orders", "broker-a", 0): 5,
        MessageQueue("orders", "broker-a", 1): 0,
        MessageQueue("orders", "broker-b", 10): 3_000_000_000,
        MessageQueue("%RETRY%g", 'a"b\\c', 3): (1 << 63) - 1,
    }


NAMES = st.text(st.characters(exclude_categories=["Cs"]))
TABLES = st.dictionaries(
    st.builds(MessageQueue, NAMES, NAMES, st.integers(0, (1 << 31) - 1)),
    st.integers(0, (1 << 63) - 1),
)


@given(TABLES)
def test_what_is_written_is_read_again(table: dict[MessageQueue, int]) -> None:
    assert from_text(to_text(table).decode()) == table


@given(st.data())
def test_a_torn_file_is_never_taken_for_a_whole_one(data: st.DataObject) -> None:
    text = to_text({A: 5, B: 70}).decode()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ProtocolError, match="not an offset file"):
        from_text(text[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"offsets":{}}',
        '{"offsetTable":{"a":1}}',
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:-1}}',
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:true}}',
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}1}}',
        '{"offsetTable":{{"brokerName":"b","queueId":0}:1}}',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        from_text(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "127.0.0.1@DEFAULT" / "g" / "offsets.json"


def written(path: Path, *tables: dict[MessageQueue, int]) -> None:
    file = OffsetFile(path)
    for table in tables:
        file.write(table)
    file.close()


def reread(path: Path) -> dict[MessageQueue, int]:
    file = OffsetFile(path)
    file.close()
    return file.offsets


def test_a_new_member_has_no_offsets_and_one_that_comes_back_has_its_own(path: Path) -> None:
    assert reread(path) == {}
    written(path, {A: 1}, {A: 2, B: 7})
    assert reread(path) == {A: 2, B: 7}
    assert from_text(path.with_name("offsets.json.bak").read_text()) == {A: 1}


@pytest.mark.parametrize("torn", ["", '{"offsetTable":{{"brokerName"'])
def test_a_torn_file_gives_way_to_its_backup(path: Path, torn: str) -> None:
    written(path, {A: 1}, {A: 2})
    path.write_text(torn)
    assert reread(path) == {A: 1}


def test_offsets_that_nobody_can_read_are_not_taken_for_none(path: Path) -> None:
    written(path, {A: 1}, {A: 2})
    path.write_text("torn")
    path.with_name("offsets.json.bak").write_text("torn too")
    with pytest.raises(StoreError, match=r"repair or remove the file.*offsets\.json\.bak"):
        OffsetFile(path)
    path.unlink()
    path.with_name("offsets.json.bak").unlink()
    assert reread(path) == {}  # and the refused one kept no lock


@pytest.mark.parametrize("calls", [0, 1])
def test_a_crash_between_any_two_steps_of_a_write_loses_one_write_at_most(
    path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    written(path, {A: 1}, {A: 2})
    real, made = os.replace, []

    def crashing(*names: Any) -> None:
        if len(made) == calls:
            raise KeyboardInterrupt
        made.append(names)
        real(*names)

    file = OffsetFile(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crashing)
        with pytest.raises(KeyboardInterrupt):
            file.write({A: 3})
    file.close()
    assert reread(path) == {A: 2}


def test_two_live_members_never_share_a_file(path: Path) -> None:
    first = OffsetFile(path)
    with pytest.raises(StateError, match="instance_name of its own"):
        OffsetFile(path)
    first.close()
    first.close()
    OffsetFile(path).close()


def test_a_place_that_cannot_hold_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="no place for offsets"):
        OffsetFile(tmp_path / "taken" / "g" / "offsets.json")
