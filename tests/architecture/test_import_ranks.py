"""Import ranks: a room imports lower ranks and itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "ordermq"
RANKS = (
    {
        "errors",
        "background_writer",
        "callables",
        "forking",
        "clock",
        "closing",
        "config",
        "health",
        "json_text",
        "lazy_imports",
        "loggers",
        "private_files",
        "real_threads",
        "standard_descriptors",
        "standard_json",
        "supervisor",
        "threads",
        "value",
        "version",
        "wall_time",
    },
    {"core"},
    {"model", "events"},
    {"remoting"},
    {"grpc"},
    {"client"},
    {"leases"},
    {"consumer", "producer"},
    {"rocketmq", "admin", "cdc"},
    {
        "broker",
        "spark",
        "cli",
        "audit",
        "metrics",
        "pytest_plugin",
        "sql",
        "testing",
        "__main__",
    },
    {"contrib"},
)
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# Inside a room with folders: each folder or file imports itself and the floors below, none beside.
FLOORS: dict[str, tuple[set[str], ...]] = {
    "consumer": (
        {"queue"},
        {"listener", "offsets"},
        {"hooks"},
        {"call_times"},
        {"dispatch", "trace_consumption"},
        {"fetch"},
        {"pop"},
        {"group", "pull_consumer"},
        {"push_consumer", "lite_pull_consumer"},
        {"async_consumer"},
    ),
}
HEAVY = {"numpy", "pandas", "pyarrow", "pyspark", "click", "rich", "matplotlib", "sqlalchemy"}
# The binding's own library, and a module that exists for type checkers only.
CORE_MAY_ALSO_IMPORT = {"cffi", "_cffi_backend", "_typeshed"}


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of every module a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_allowed(room: str, module: str) -> bool:
    first, *rest = module.split(".")
    if first == "pyspark":
        return room == "spark"
    if first != "ordermq":
        extra = {"core": CORE_MAY_ALSO_IMPORT, "json_text": {"orjson"}}.get(room, set())
        return RANK[room] > 1 or first in sys.stdlib_module_names | extra
    other = rest[0] if rest else ""
    if other == room:
        return True
    if other not in RANK:  # the front door: ordermq.Producer, ordermq.__version__
        return RANK[room] > 5
    if room == "core":
        return other in ("errors", "threads")
    if room == "broker":
        return RANK[other] <= 3
    if room in ("cli", "pytest_plugin", "__main__"):
        return other in RANK
    return RANK[other] < RANK[room] or RANK[room] == RANK[other] == 0


def test_a_room_imports_only_lower_ranks_and_itself() -> None:
    refused = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted(HOUSE.rglob("*.py"))
        if (room := room_of(path)) != "__init__"
        for module in sorted(imports(path))
        if not is_allowed(room, module)
    ]
    assert refused == []


@pytest.mark.parametrize("room", FLOORS)
def test_inside_a_room_imports_only_go_down(room: str) -> None:
    floor = {part: number for number, parts in enumerate(FLOORS[room]) for part in parts}
    refused, parts = [], set()
    for path in sorted((HOUSE / room).rglob("*.py")):
        part = path.relative_to(HOUSE / room).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        parts.add(part)
        for module in sorted(imports(path)):
            names = module.split(".")
            if names[:2] != ["ordermq", room] or len(names) < 3 or names[2] == part:
                continue
            if floor[names[2]] >= floor[part]:
                refused.append(f"{path.relative_to(ROOT)} imports {module}")
    assert refused == []
    assert parts == set(floor), "each folder and file of the room has its floor"


def test_every_room_has_a_rank() -> None:
    assert {room_of(path) for path in HOUSE.rglob("*.py")} <= {*RANK, "__init__"}


def test_the_page_has_every_room_with_its_rank() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (`.+?`) \|", page, re.MULTILINE)
    told = {room: int(rank) for rank, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}
    assert told == RANK


def test_importing_ordermq_loads_nothing_heavy() -> None:
    script = f"import sys, ordermq; print(sorted(set(sys.modules) & {HEAVY!r}))"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
