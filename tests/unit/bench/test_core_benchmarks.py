"""The core's benchmarks still run, and still do what they time; at sizes that take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.core import bench_memory
from bench.core.__main__ import WORKS

ROOT = Path(__file__).parents[3]
CORES = ("cython", "cffi")
pytestmark = pytest.mark.timeout(300)  # processes of their own, beside others of the machine


def run(core: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | {"ORDERMQ_CORE": core, "ORDERMQ_BENCH": "quick"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("core", CORES)
def test_every_case_of_the_matrix_does_what_it_times(core: str) -> None:
    said = run(core, "pytest", "-q", "-p", "no:cacheprovider", "bench/core", "--benchmark-disable")
    assert " passed" in said


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("work", [work for work in WORKS if work != "memory"])
def test_a_work_hands_on_its_figures_in_one_line(core: str, work: str) -> None:
    line = json.loads(run(core, f"bench.core.bench_{work}").splitlines()[-1])
    assert (line["peer"], line["work"], line["detail"]["core"]) == ("ordermq", work, core)
    assert line["rows"]
    assert all(value > 0 for value in line["rows"].values())


@pytest.mark.parametrize("shape", bench_memory.SHAPES)
def test_the_memory_of_a_shape_is_counted(shape: str) -> None:
    line = json.loads(run("cython", "bench.core.bench_memory", shape, "320000").splitlines()[-1])
    (value,) = line["rows"].values()
    assert 0 < value < 1_000


def test_the_reference_is_not_measured() -> None:
    with pytest.raises(AssertionError, match="the reference core is not measured"):
        run("reference", "bench.core.bench_process_queue")
