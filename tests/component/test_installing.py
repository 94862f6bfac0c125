"""`pip` on a copy of this checkout, where there is no C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_COMPILER = {"CC": "/nonexistent/cc"}
REPORT = "from ordermq import core; print(core.IMPLEMENTATION, core.include_dir())"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Files that a build reads, without anything built."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for room in ("ordermq", "ext"):
        built = shutil.ignore_patterns(
            "*.so", "_cython.c", "libordermq.pxd", "_cffi.c", "__pycache__"
        )
        shutil.copytree(ROOT / room, copy / room, ignore=built)
    return copy


def pip_wheel(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ORDERMQ_CORE"}
    alone = ("--no-build-isolation", "--no-deps", "--no-index")
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *alone, "--wheel-dir", "wheels", "."],
        cwd=checkout,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_a_build_without_a_compiler_says_what_is_missing_and_every_way_out(
    checkout: Path,
) -> None:
    done = pip_wheel(checkout, **NO_COMPILER)
    assert done.returncode != 0
    assert "no C compiler: '/nonexistent/cc' is not there" in done.stderr
    assert "apt install gcc" in done.stderr
    assert "xcode-select --install" in done.stderr
    assert "ORDERMQ_CORE=reference pip install ." in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_compiler_without_headers_is_told_from_none(checkout: Path) -> None:
    failing = shutil.which("false")
    assert failing is not None
    done = pip_wheel(checkout, CC=failing)
    assert done.returncode != 0
    assert "cannot compile a file that includes Python.h" in done.stderr
    assert "python3-dev" in done.stderr


def test_who_asks_for_the_reference_core_needs_no_compiler(checkout: Path) -> None:
    done = pip_wheel(checkout, ORDERMQ_CORE="reference", **NO_COMPILER)
    assert done.returncode == 0, done.stderr
    (wheel,) = (checkout / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    site = checkout / "site"
    shutil.unpack_archive(wheel, site, "zip")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = ['site', *{dependencies!r}]; {REPORT}"],
        cwd=checkout,
        env={k: v for k, v in os.environ.items() if k != "ORDERMQ_CORE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.split() == ["reference", str(site / "ordermq" / "core" / "c")]
    assert told.stderr.count("RuntimeWarning: ordermq runs on its reference core") == 1


def test_a_core_that_is_none_is_refused_by_the_build_too(checkout: Path) -> None:
    done = pip_wheel(checkout, ORDERMQ_CORE="refrence")
    assert done.returncode != 0
    assert "ORDERMQ_CORE='refrence': expected cython, cffi or reference" in done.stderr
