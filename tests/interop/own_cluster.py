"""A separate RocketMQ for tests that need other settings."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.interop.cluster import ROOT, Cluster

LOCK_MAX_LIVE = "--java=-Drocketmq.broker.rebalance.lockMaxLiveTime=20000"  # as ci/interop.sh's


@contextlib.contextmanager
def own_cluster(version: str, folder: Path, *options: str, **settings: str) -> Iterator[Cluster]:
    """Start it, and stop it after the block.

    Args:
        folder: must not exist.
        options: of `ci/rocketmq.sh up`.
        settings: of its brokers.
    """
    place = [version, f"--folder={folder}"]
    told = [f"--set={name}={value}" for name, value in settings.items()]
    try:
        _rocketmq("up", *place, LOCK_MAX_LIVE, "--heap=256", *options, *told)
        yield Cluster(folder)
    finally:
        _rocketmq("down", *place)


def _rocketmq(*arguments: str) -> None:
    line = ["ci/rocketmq.sh", *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
