"""Output and files of commands on a disk without room: one line says so, nothing is half there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.run.run_output import OutputStream
from ordermq.consumer.offsets.local_offsets import LocalOffsets, OffsetFile
from ordermq.errors import StoreError
from ordermq.model.message_queue import MessageQueue

FULL = Path("/dev/full")  # refuses each write for want of space


@pytest.mark.parametrize(
    "line", ["consume g t --from first", "peek t --from first", "topics list --json", "lag g t"]
)
def test_a_command_whose_output_finds_no_room_ends_with_one_line(line: str) -> None:
    """Also one that would go on for ever: each attempt at the same message would fail."""
    with EmbeddedBroker() as broker, FULL.open("w") as output:
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("t", b"x"), sharding_key="k")
        command = [sys.executable, "-m", "ordermq", *line.split()]
        ended = subprocess.run(
            [*command, "--name-servers", broker.name_servers],
            stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        "error: the output cannot be written (No space left on device): free space, or send it "
        "elsewhere"
    )
    assert "Traceback" not in ended.stderr


def test_a_full_disk_under_the_output_of_run_drops_lines_and_stops_nothing() -> None:
    told: list[str] = []
    broken = threading.Event()
    with FULL.open("w") as output:
        stream = OutputStream("stdout", output, told.append, broken.set)
        for _ in range(3):
            stream.write(b"one\ntwo\n")
            stream.drain()
    assert not broken.is_set()
    assert stream.dropped_lines == 6
    assert told == [
        "stdout cannot be written (No space left on device): lines are dropped and counted until "
        "it can"
    ]


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that may write files of 64 KiB at most."""
    command = [sys.executable, "-m", "ordermq", *map(str, arguments)]
    limit = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.run(
        [sys.executable, "-c", limit, *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_copy_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    data.mkdir()
    with EmbeddedBroker(data) as broker:
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("t", os.urandom(200_000)), sharding_key="k")
        made = subprocess.run(
            [sys.executable, "-m", "ordermq", "broker", "backup", data, copy], check=False
        )
        assert made.returncode == 0
    for ended in (
        limited("broker", "backup", data, tmp_path / "other.db"),
        limited("broker", "restore", copy, data),
    ):
        assert ended.returncode == 1
        assert "free space on that disk" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not list(data.glob("*.restored*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "data"]


def test_a_refused_write_of_offsets_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    file = OffsetFile(path)
    (tmp_path / "offsets.json.new").symlink_to(FULL)
    with pytest.raises(StoreError, match=r"offsets.json .*free space"):
        asyncio.run(LocalOffsets(file).write(MessageQueue("t", "b", 0), 7))
    file.close()
