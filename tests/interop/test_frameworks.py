"""FastStream and Celery on RocketMQ, ordered by key, with their workers killed (docs/faststream.md,
docs/celery.md).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.conftest import whole_lines
from tests.component.celery_workers import environment_of, kill_in_the_middle
from tests.interop.cluster import ROOT, Cluster, eventually
from tests.interop.run import Run

COUNT, KEYS = 200, 9


@pytest.mark.timeout(300)  # a killed worker's locks live for 20 s
def test_celery_workers_that_are_killed_lose_no_task_and_keep_the_order_of_keys(
    cluster: Cluster, tmp_path: Path
) -> None:
    kill_in_the_middle(environment_of(cluster.name_servers, tmp_path))


@pytest.mark.timeout(300)
def test_a_faststream_application_that_is_killed_keeps_the_order_of_keys(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "handled"
    file.touch()
    command = [sys.executable, "-m", "tests.interop.faststream_app"]
    command += [cluster.name_servers, run.group, run.topic, str(file)]
    run.send(COUNT, keys=KEYS)

    def handled() -> list[int]:
        return [int(line) for line in whole_lines(file)]

    for count in (COUNT // 3, 2 * COUNT // 3, COUNT):
        application = subprocess.Popen(command, cwd=ROOT)
        try:
            eventually(lambda n=count: len(set(handled())) >= n, f"{count} messages", 90.0)
        finally:
            application.kill()
            application.wait()
    first = list(dict.fromkeys(handled()))  # what was not committed is handled again
    for key in range(KEYS):
        assert [n for n in first if n % KEYS == key] == list(range(key, COUNT, KEYS))
