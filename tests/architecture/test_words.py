"""Words of the house: docstring openings, and names that were replaced by those of the field."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "ordermq"
_RIDDLE = re.compile(r"(What|Which|How|Who|Whom|Whose|Where|Whether|When|Why)\b")
# Names nobody outside this project would search for, and what is said instead.
_REPLACED_FILES = {
    "agreement": "subscription_check",
    "asking": "request_reply",
    "bell": "thread_event",
    "complaints": "warn_once",
    "destination": "send_protocol",
    "driver_lease": "driver_locks",
    "entries": "pending_message",
    "faults": "latency_fault",
    "group_history": "event_recorder",
    "hand_off": "revocation",
    "hot_frames": "fast_path",
    "inquiries": "admin_requests",
    "intake": "accumulator",
    "introductions": "broker_registration",
    "lane_queue": "key_ordered_queue",
    "ledger": "delivered_offsets",
    "ordered_calls": "stage_invocation",
    "ordered_failure": "failure_policy",
    "packing": "compression",
    "placing": "message_routing",
    "positions": "offset_resolution",
    "pull_streak": "fetcher",
    "pullers": "fetcher",
    "rates": "throughput",
    "rejoining": "heartbeats",
    "repeats": "deduplication",
    "sending": "in_flight_batch",
    "set_aside": "pending_log",
    "shares": "rebalance",
    "sink_places": "row_stamps",
    "stacks": "slow_listener_watch",
    "steered": "queue_control",
    "steering": "queue_control",
    "tails": "latest_offsets",
    "targets": "queue_routing",
    "telling": "console",
    "tenures": "ownership",
    "unlocked": "queue_locks",
    "watchdog": "slow_listener_watch",
}
_REPLACED_CLASSES = {
    "Agreement": "SubscriptionCheck",
    "Bell": "ThreadEvent",
    "Complaints": "WarnOnce",
    "DriverLease": "DriverLocks",
    "Failures": "FailureHandler",
    "Inquiries": "AdminRequests",
    "Intake": "Accumulator",
    "Introductions": "BrokerRegistration",
    "LaneQueue": "KeyOrderedQueue",
    "LaneService": "KeyOrderedDispatcher",
    "Parcel": "SendRequest",
    "PullStreak": "Fetcher",
    "QueueLane": "QueueSender",
    "Rejoining": "Heartbeats",
    "SetAside": "PendingLog",
    "SteeredConsumer": "QueueControl",
    "Steering": "QueueControl",
    "Targets": "QueueRouting",
    "TurnDriver": "ConsumeLoop",
    "Unlocked": "NoLocks",
    "Watchdog": "SlowListenerWatch",
}
# Parts of names, wherever they stand in a source file; DLedger is RocketMQ's.
_REPLACED_PARTS = re.compile(
    r"told_epoch|inquir(y|ies)|steer(ed|ing)|pull_streak|moves_left|hot_frame|set_aside"
    r"|sink_places|tenure|(?<!d)ledger|\bParcel\b|QueueLane|LaneService|TurnDriver|vouch|ends_claim"
    r"|running_weight|defect_delay|leave_out|take_all_in|plain_texts|is_sound",
    re.IGNORECASE,
)

_FRAGMENT = re.compile(r"\s*(?:#|/\*) (?:Of|Else)\b")


@cache
def trees() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text())
        for room in ("ordermq", "ci")
        for path in sorted((ROOT / room).rglob("*.py"))
    }


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def docstrings(tree: ast.Module) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        text
        for node in ast.walk(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]


# By their names: each worker of a run would parse the whole house while it looks for tests.
ROOMS = sorted({room_of(path) for path in HOUSE.rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_begin_with_what_they_name_or_do(room: str) -> None:
    riddles = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        if HOUSE in path.parents and room_of(path) == room
        for text in docstrings(tree)
        if _RIDDLE.match(text)
    ]
    assert not riddles, "\n".join(riddles)


@pytest.mark.parametrize("folder", ["bench", "ci", "examples", "tests"])
def test_docstrings_beside_the_package_begin_so_too(folder: str) -> None:
    riddles = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(ast.parse(path.read_text()))
        if _RIDDLE.match(text)
    ]
    assert not riddles, "\n".join(riddles)


def test_replaced_names_are_gone() -> None:
    found = []
    for path, tree in trees().items():
        if path.stem in _REPLACED_FILES:
            found.append(f"{path.relative_to(ROOT)}: say {_REPLACED_FILES[path.stem]}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in _REPLACED_CLASSES:
                new = _REPLACED_CLASSES[node.name]
                found.append(f"class {node.name} of {path.relative_to(ROOT)}: say {new}")
    assert found == []


def test_no_name_contains_a_replaced_word() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for room in ("ordermq", "ext", "ci")
        for ending in ("py", "pyx", "c", "h")
        for path in (ROOT / room).rglob(f"*.{ending}")
        if path.name != "_cython.c"
        for match in _REPLACED_PARTS.finditer(path.read_text())
    }
    assert sorted(found) == []


def test_a_comment_begins_with_no_fragment() -> None:
    # A reader would have to find out: of what, and else than what?
    fragments = []
    for room in ("ordermq", "pyspark_ordermq", "ext", "ci", "bench", "examples", "tests"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix not in {".py", ".pyx", ".c", ".h", ".sh"} or path.name == "_cython.c":
                continue
            before = ""
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if _FRAGMENT.match(line) and not before.lstrip().startswith("#"):
                    fragments.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
                before = line
    assert not fragments, "\n".join(fragments)
