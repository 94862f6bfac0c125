"""Files for their owner alone, whatever the umask and whatever was there before."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.consumer.offsets.local_offsets import OffsetFile
from ordermq.errors import ConfigError, StoreError
from ordermq.events import History
from ordermq.private_files import make_private, open_private
from tests.component.broker.wire_client import WireClient


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir()}


def test_every_file_of_a_broker_is_private(umask: int, tmp_path: Path) -> None:
    history = History(tmp_path / "broker.jsonl", "broker")
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path, history=history) as broker, WireClient(broker.port) as client:
        client.send("orders")
        names = {"broker.db", "broker.db-wal", "broker.db-shm", "broker.db.lock", "broker.jsonl"}
        assert modes(tmp_path) == dict.fromkeys(names, 0o600)
    history.close()


def test_offsets_of_a_broadcasting_member_are_private(umask: int, tmp_path: Path) -> None:
    file = OffsetFile(tmp_path / "offsets.json")
    file.write({})
    file.write({})
    file.close()
    names = {"offsets.json", "offsets.json.bak", "offsets.json.lock"}
    assert modes(tmp_path) == dict.fromkeys(names, 0o600)


def test_files_from_before_are_made_private_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path):
        pass
    for name in ("broker.db", "broker.db.lock"):
        (tmp_path / name).chmod(0o644)
    for _ in range(2):
        with EmbeddedBroker(path):
            assert set(modes(tmp_path).values()) == {0o600}
    assert caplog.text.count("file made private") == 2


def test_a_crash_leaves_no_readable_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").touch(0o644)
    with EmbeddedBroker(path):
        assert set(modes(tmp_path).values()) == {0o600}


def test_devices_keep_their_mode(tmp_path: Path) -> None:
    before = mode(Path(os.devnull))
    os.close(open_private(os.devnull, os.O_WRONLY))
    make_private(os.devnull)
    make_private(tmp_path / "missing")
    assert mode(Path(os.devnull)) == before


@pytest.mark.parametrize("name", ["offsets.json", "offsets.json.lock", "offsets.json.new"])
def test_a_link_in_the_place_of_an_offset_file_is_not_followed(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "shared"
    victim.write_text("{}")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises((StoreError, OSError), match="symbolic link is not followed"):
        OffsetFile(folder / "offsets.json").write({})
    assert victim.read_text() == "{}"


def test_a_link_in_the_place_of_a_history_is_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "history.jsonl"
    victim.touch()
    link.symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link is not followed"):
        History(link, "member")
    assert victim.read_text() == ""


def test_a_file_that_was_there_is_opened_and_a_folder_on_the_way_may_be_a_link(
    tmp_path: Path,
) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    real.mkdir()
    linked.symlink_to(real)
    for _ in range(2):
        os.close(open_private(linked / "file", os.O_RDWR))
    assert mode(real / "file") == 0o600
