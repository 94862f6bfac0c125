"""The walks of architecture.md name the files that the code enters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "architecture.md"
_ITEM = re.compile(r"^\d+\. `([\w/]+\.py)`", re.MULTILINE)
# Entered only sometimes: periodic work that may fall into a measurement, busy workers, an answer to
# a send that the loop began.
_BESIDE = {
    "ordermq/client/heartbeats.py",
    "ordermq/client/name_server_api.py",
    "ordermq/client/runtime.py",
    "ordermq/client/session.py",
    "ordermq/consumer/fetch/fetcher.py",  # a rebalance that starts the pulls of a queue
    "ordermq/consumer/fetch/life_watch.py",  # as the engine's counts are gathered
    "ordermq/consumer/group/allocation.py",
    "ordermq/consumer/group/member_parts.py",
    "ordermq/consumer/group/queue_locks.py",
    "ordermq/consumer/group/subscriptions.py",
    "ordermq/model/identifiers.py",  # once per millisecond
    "ordermq/model/names.py",
    "ordermq/forking.py",  # once per connection
    "ordermq/remoting/bodies.py",
    "ordermq/remoting/time_limit.py",  # as a connection is opened, and when time-outs are checked
    "ordermq/remoting/headers.py",
    "ordermq/model/receipts.py",
    "ordermq/supervisor.py",
    "ordermq/value.py",  # settings and headers, as they are made
}


def walks() -> dict[str, list[str]]:
    """Return the files of each walk by its title."""
    text = PAGE.read_text().split("\n## Walks\n")[1].split("\n## ")[0]
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    return {title: _ITEM.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True)}


def entered(what: str, core: str) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.architecture.entered_files", what],
        cwd=ROOT,
        env=os.environ | {"ORDERMQ_CORE": core},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    found: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return [name for name in found if not name.startswith("ordermq/core/")]


def test_there_are_four_walks() -> None:
    assert len(walks()) == 4
    assert all(len(files) > 15 for files in walks().values())


@pytest.mark.parametrize("title", walks())
def test_a_walk_names_each_file_once(title: str) -> None:
    files = walks()[title]
    assert sorted(files) == sorted(set(files))
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("what", "title", "core"),
    [
        ("receive", "A body, from the socket to the commit", "cython"),
        ("receive", "The same body, on the Python path", "reference"),
        ("send", "A send, from the call to the receipt", "cython"),
    ],
)
def test_a_walk_is_true(what: str, title: str, core: str) -> None:
    named, passed = walks()[title], entered(what, core)
    assert sorted(set(named) - set(passed)) == [], "named, and never entered"
    assert sorted(set(passed) - set(named) - _BESIDE) == [], "entered, and not named"


def test_a_queue_that_moves_passes_every_file_of_its_walk() -> None:
    # It passes others, too: the members also join, heartbeat and pull.
    named = walks()["A queue, from a rebalance to its next owner"]
    assert sorted(set(named) - set(entered("move", "cython"))) == [], "named, and never entered"
