"""Rules of the house that a linter does not know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("ordermq", "pyspark_ordermq", "tests", "bench", "ci", "ext")
ENDINGS = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".sh"}
# A skipped test does not run, and nobody notices. Each file that may skip is named here.
MAY_SKIP = {
    "tests/interop/test_proxy.py",  # RocketMQ 4 has no proxy
    "tests/interop/test_policies.py",
    "tests/interop/test_pop.py",  # nor POP
    "tests/interop/test_unordered_groups.py",  # likewise
    "tests/interop/test_batch_topics.py",  # nor batch topics
    "tests/interop/test_grpc.py",  # nor gRPC
    "tests/interop/test_grpc_java.py",
    "tests/interop/test_grpc_keys.py",
    "tests/conftest.py",
    "tests/component/test_cdc_postgresql.py",  # PostgreSQL cannot be had everywhere
    "tests/component/test_dashboard.py",  # asks a Prometheus, which few machines have
    "tests/component/test_observers.py",  # mounts a small disk, which takes root
    "tests/interop/test_accounts.py",
    "tests/interop/test_bad_input.py",
    "tests/dropin/test_old_packages.py",
    "tests/spark/conftest.py",  # what a Spark before 4.2 cannot do
    "tests/unit/test_settings_types.py",  # pyright runs on Node.js
}
_MAPPED = re.compile(r"(?<![\w/.*])((?:\w+/)*\w+)(\.py|/(?!\w))")
_SKIP = re.compile(r"pytest\.(skip|importorskip|xfail)\(|mark\.(skip|skipif|xfail)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.}])/(home|Users|work|mnt)/")


def files() -> dict[str, Path]:
    """Every source file by its name in the repository; generated ones left out."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*"))
    return {
        str(path.relative_to(ROOT)): path
        for path in found
        if path.suffix in ENDINGS and path.name not in ("_cython.c", "libordermq.pxd")
    }


def python_files() -> dict[str, Path]:
    return {name: path for name, path in files().items() if path.suffix == ".py"}


def test_a_file_is_named_for_what_it_owns() -> None:
    vague = re.compile(r"util|helper|manager|misc|common")
    assert [name for name, path in files().items() if vague.search(path.name)] == []


def test_the_map_of_a_room_has_each_of_its_files_and_no_other() -> None:
    # A newcomer reads it first: what is missing there is not found, or is written once more.
    wrong = []
    for name, path in python_files().items():
        if path.name != "__init__.py" or not name.startswith("ordermq/"):
            continue
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if "|---|" not in text:
            continue  # a small room, which has none
        room = path.parent
        told = {room / (stem + ending.strip("/")) for stem, ending in _MAPPED.findall(text)}
        there = {each for each in room.iterdir() if each.suffix == ".py" or is_package(each)}
        for folder in filter(is_package, there - told):  # its files are told one by one
            there = there - {folder} | set(folder.glob("*.py"))
        there = {each for each in there if each.name != "__init__.py"}
        wrong += [f"{name} lacks {each.relative_to(room)}" for each in sorted(there - told)]
        wrong += [
            f"{name} names {each.relative_to(room)}"
            for each in told
            if not each.exists() and not (ROOT / each.relative_to(room)).exists()
        ]
    assert wrong == []


def is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()


def test_locks_are_made_of_those_that_an_exception_never_leaves_held() -> None:
    made = re.compile(r"\bthreading\.(R?Lock|Condition)\b|allocate_lock|threading import .*Lock")
    found = [
        name
        for name, path in python_files().items()
        if name.startswith(("ordermq/", "pyspark_ordermq/")) and made.search(path.read_text())
    ]
    assert found == ["ordermq/threads.py"], "take Lock and RLock of ordermq.threads"


def test_no_handler_swallows_every_error() -> None:
    swallowing = [
        f"{name}:{node.lineno}"
        for name, path in python_files().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert swallowing == []


def swallows(handler: ast.ExceptHandler) -> bool:
    kind = handler.type
    broad = kind is None or (
        isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")
    )
    return broad and all(isinstance(part, ast.Pass | ast.Continue) for part in handler.body)


def test_a_script_stops_at_its_first_error() -> None:
    scripts = {name: path for name, path in files().items() if path.suffix == ".sh"}
    careless = [
        name for name, path in scripts.items() if "set -euo pipefail" not in path.read_text()
    ]
    assert careless == []


def test_a_script_that_is_asked_for_help_does_nothing_before() -> None:
    # These two look at their arguments themselves, first of all.
    others = {"ci/help.sh", "ci/bench.sh", "ci/rocketmq.sh"}
    silent = [
        name
        for name, path in files().items()
        if name.startswith("ci/") and path.suffix == ".sh" and name not in others
        if not re.search(
            r"^set -euo pipefail\n.*source .*/help\.sh\"$", path.read_text(), re.MULTILINE
        )
    ]
    assert silent == []


def test_no_file_names_a_machine() -> None:
    named = [name for name, path in files().items() if _MACHINE_PATH.search(path.read_text())]
    assert named == []


def test_every_skip_is_listed() -> None:
    skipping = {
        name
        for name, path in python_files().items()
        if name.startswith("tests/") and path != Path(__file__) and _SKIP.search(path.read_text())
    }
    assert skipping == MAY_SKIP


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code; a commit cannot."""
    used = [
        line.split("uses:")[1].split("#")[0].strip()
        for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []
