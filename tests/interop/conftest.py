"""Tests on a real RocketMQ: ci/interop.sh starts it and runs them, plain pytest leaves them out.

ORDERMQ_ROCKETMQ is the folder of an instance of ci/rocketmq.sh.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import Cluster
from tests.interop.run import Run

FOLDER = os.environ.get("ORDERMQ_ROCKETMQ", "")
_NUMBERS = itertools.count(1)

if not FOLDER:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"RocketMQ: {FOLDER or 'none, tests/interop is left out; ci/interop.sh runs it'}"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster(Path(FOLDER))


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    # Topics outlive a run of pytest on an instance that is kept: the process makes them new.
    word = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40]
    running = Run(cluster, tmp_path, f"{word}-{os.getpid()}-{next(_NUMBERS)}")
    yield running
    running.close()
