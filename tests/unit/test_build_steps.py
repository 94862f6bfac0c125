"""Steps of a build (ext/build_steps.py): extensions are compiled once, and together."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # as a build is
        return runpy.run_path("ext/build_steps.py")


class Compiler:
    """A compiler object of setuptools that remembers what it was asked for."""

    compiler_so = ("cc", "-O2")
    linker_so = ("cc", "-shared")

    def __init__(self) -> None:
        self.flags: dict[str, list[str]] = {}
        self.compiled: list[str] = []

    def compile(
        self, sources: list[str], *, extra_postargs: list[str], include_dirs: tuple[str, ...] = ()
    ) -> list[str]:
        (source,) = sources
        self.flags[Path(source).name] = extra_postargs
        self.compiled.append(source)
        return [f"{source}.o"]


def extension(folder: Path, **changes: Any) -> SimpleNamespace:
    folder.mkdir(exist_ok=True)
    for name in ("queue.c", "queue.h"):
        if not (folder / name).exists():
            (folder / name).write_text(f"/* {name} */\n")
    parts = {
        "name": "ordermq.core._example",
        "sources": [str(folder / "queue.c")],
        "depends": [str(folder / "queue.h")],
        "include_dirs": ["ext/core"],
        "define_macros": [],
        "extra_compile_args": ["-O3"],
        "extra_link_args": [],
    }
    return SimpleNamespace(**(parts | changes))


@pytest.fixture
def fingerprint(
    steps: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[SimpleNamespace], str]:
    monkeypatch.chdir(ROOT)  # as a build is
    return lambda built: str(steps["fingerprint"](Compiler(), built))


def test_a_copy_of_the_tree_has_the_same_fingerprint(
    fingerprint: Callable[[SimpleNamespace], str], tmp_path: Path
) -> None:
    first = fingerprint(extension(tmp_path / "here"))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert fingerprint(extension(tmp_path / "there")) == first


@pytest.mark.parametrize("name", ["queue.c", "queue.h"])
def test_a_changed_file_has_another_fingerprint(
    fingerprint: Callable[[SimpleNamespace], str], tmp_path: Path, name: str
) -> None:
    built = extension(tmp_path)
    first = fingerprint(built)
    (tmp_path / name).write_text("/* changed */\n")
    assert fingerprint(built) != first


@pytest.mark.parametrize(
    "changes",
    [
        {"extra_compile_args": ["-O1"]},
        {"extra_link_args": ["-s"]},
        {"define_macros": [("OMQ_CHECKED", "1")]},
        {"name": "ordermq.core._other"},
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_other_flags_have_another_fingerprint(
    fingerprint: Callable[[SimpleNamespace], str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert fingerprint(extension(tmp_path, **changes)) != fingerprint(extension(tmp_path))


def test_cflags_of_the_environment_have_another_fingerprint(
    fingerprint: Callable[[SimpleNamespace], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = fingerprint(extension(tmp_path))
    monkeypatch.setenv("CFLAGS", "-fsanitize=address")
    assert fingerprint(extension(tmp_path)) != first


def test_objects_come_in_the_order_of_their_sources_and_generated_c_has_flags_of_its_own(
    steps: dict[str, Any], tmp_path: Path
) -> None:
    compiler = Compiler()
    steps["compile_together"](compiler)
    names = ["queue.c", steps["GENERATED"], "lanes.c"]
    for size, name in enumerate(names):
        (tmp_path / name).write_text("\n" * size)
    sources = [str(tmp_path / name) for name in names]
    assert compiler.compile(sources, extra_postargs=["-O3"]) == [f"{name}.o" for name in sources]
    assert compiler.flags == {
        "queue.c": ["-O3"],
        "lanes.c": ["-O3"],
        steps["GENERATED"]: ["-O3", *steps["CORE"]["GENERATED_COMPILE_ARGS"]],
    }


def test_a_file_of_the_core_is_compiled_once_for_the_extensions_that_share_it(
    steps: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    compiler = Compiler()
    steps["compile_together"](compiler)
    shared, other = steps["CORE"]["SOURCES"][0], steps["CORE"]["ENGINE_SOURCES"][0]
    for include_dirs in (("ext/core", "ext/engine"), ("ext/core",)):
        made = compiler.compile([shared, other], extra_postargs=["-O3"], include_dirs=include_dirs)
        assert made == [f"{shared}.o", f"{other}.o"]
    assert sorted(compiler.compiled) == sorted([shared, other, other])


def test_a_file_of_the_core_is_compiled_again_with_other_flags(
    steps: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    compiler = Compiler()
    steps["compile_together"](compiler)
    shared = steps["CORE"]["SOURCES"][0]
    for flags in (["-O3"], ["-O1"]):
        compiler.compile([shared], extra_postargs=flags)
    assert compiler.compiled == [shared, shared]
