"""Every loop of clients and of the embedded broker goes on after errors that nobody expected.

The loops are found in the sources: one that is added is broken here without a further word, and
only needs a line in `PROVOKED` if it does not run by itself.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
)
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.supervisor import LoopHealth, Round, Supervisor
from tests.component.conftest import eventually

SOURCES = Path(__file__).parents[2] / "ordermq"
_MAY_START = re.compile(r"start\(\s*\"|\.round\b|every\(")
CONTINUOUSLY = 4  # errors in a row: the pauses add up to 0.7 s


@cache
def kinds() -> list[str]:
    """The kind of each loop that the sources start: `start("kind", ...)`, or a pair of `loops`."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if not _MAY_START.search(text):  # parsing all of them takes seconds, in each worker
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and len(node.args) >= 2:
                kind, name = node.args[0], node.func
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
                kind, name = node.elts
            else:
                continue
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                text = ast.unparse(name)
                is_call = text == "start" or text.endswith("supervisor.start")
                if is_call or text.endswith(".round") or text.startswith("every("):
                    found.add(kind.value)
    return sorted(found)


class Breakage:
    """Breaks the rounds of one kind of loop, `times` times in a row, then lets it work."""

    def __init__(self, kind: str, times: int) -> None:
        self.kind, self.times = kind, times
        self.errors = 0
        self.good_rounds = threading.Semaphore(0)
        self.is_started = threading.Event()
        self.supervisors: list[Supervisor] = []

    def wrapped(self, round: Round) -> Round:
        left = self.times

        async def broken() -> object:
            nonlocal left
            if left:
                left -= 1
                self.errors += 1
                raise RuntimeError(f"broken for a test: {self.kind}")
            self.good_rounds.release()
            return await round()

        return broken

    def troubled(self) -> list[LoopHealth]:
        return [
            each
            for supervisor in self.supervisors
            for each in supervisor.troubled()
            if each.name.startswith(self.kind)
        ]


@pytest.fixture
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Breakage:
    breakage = Breakage(*request.param)
    start = Supervisor.start

    def start_broken(
        self: Supervisor, kind: str, round: Round, of: str = "", **options: Any
    ) -> Any:
        if kind == breakage.kind:
            round = breakage.wrapped(round)
            if self not in breakage.supervisors:
                breakage.supervisors.append(self)
            breakage.is_started.set()
        return start(self, kind, round, of, **options)

    monkeypatch.setattr(Supervisor, "start", start_broken)
    return breakage


class Scene:
    """A broker, a producer and a consumer with everything switched on, and what arrived."""

    def __init__(self, stack: ExitStack, tmp_path: Path, kind: str) -> None:
        is_polling = kind in POLLING
        self.bodies: list[bytes] = []
        broker_config = BrokerConfig(
            durability="os",
            lock_max_live_ms=6_000,
            retention_ms=3_600_000,
            retention_interval_ms=50,
            transaction_check_interval_ms=50,
            client_scan_interval_ms=50,
            frame_timeout_ms=8_000,  # looked at every two seconds
        )
        self.broker = stack.enter_context(EmbeddedBroker(tmp_path / "b.db", config=broker_config))
        servers = self.broker.name_servers
        often = {"heartbeat_interval_ms": 50, "route_interval_ms": 50}
        self.producer = stack.enter_context(
            Producer(
                "p", name_servers=servers, enable_msg_trace=True, trace_interval_ms=50, **often
            )
        )
        self.producer.send(Message("orders", b"0"), sharding_key="k")
        self.consumer: Any
        if is_polling:
            self.consumer = LitePullConsumer(
                "g", name_servers=servers, ordered=True, consume_from_where="first_offset",
                auto_commit_interval_ms=100, rebalance_interval_ms=500, **often,
            )  # fmt: skip
            self.consumer.subscribe("orders")
        else:
            self.consumer = PushConsumer(
                "g", name_servers=servers, consume_from_where="first_offset",
                rebalance_interval_ms=500, commit_interval_ms=50, consume_timeout_ms=1_000,
                consume_mode="pop" if kind in POPPING else "pull", **often,
            )  # fmt: skip
            self.consumer.subscribe("orders")
            self.consumer.orderly(self._take)
        self.is_polling = is_polling
        stack.enter_context(self.consumer)

    def _take(self, messages: Any, context: Any) -> None:
        self.bodies += [bytes(message.body) for message in messages]

    def send_and_receive(self, body: bytes) -> None:
        self.producer.send(Message("orders", body), sharding_key="k")
        self._receive(body)

    def _receive(self, body: bytes) -> None:
        def is_here() -> bool:
            if self.is_polling:
                self._take(self.consumer.poll(50), None)
            return body in self.bodies

        eventually(is_here, f"{body!r} arrives; got {self.bodies}")


def lose_connections(scene: Scene) -> None:
    """Have the client reconnect: its connections are cut."""
    client = scene.consumer._member.client

    def cut() -> None:
        for connection in list(client.connections._open.values()):
            connection.abort(ConnectionError("cut by the test"))

    client.runtime.post(cut)


# What makes a loop run that does not run by itself, by its kind; the others need nothing.
PROVOKED: dict[str, Callable[[Scene], None]] = {"reconnect": lose_connections}
# Loops that only a lite pull consumer has.
POLLING = {"pollers"}
POPPING = {"pop"}  # and one that pops
# Those of Spark's driver; of a consumer that parks keys, and of a client of a proxy, which
# test_parked_keys.py and test_grpc_routes.py break.
ELSEWHERE = {"lease renewal", "park", "unpark requests", "brokers"}


def test_the_loops_are_found() -> None:
    assert {
        "heartbeat", "routes", "rebalance", "locks", "commits", "pull", "slow listeners", "pollers",
        "counts", "reconnect", "subscription check", "traces", "delayed messages", "timed messages",
        "transaction checks", "retention", "expiry", "held pulls", "lease renewal",
    } <= set(kinds())  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [(kind, times) for kind in kinds() if kind not in ELSEWHERE for times in (1, CONTINUOUSLY)],
    indirect=True,
    ids=lambda each: f"{each[0].replace(' ', '_')}-{each[1]}",
)
def test_a_loop_that_breaks_goes_on(
    broken: Breakage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        scene = Scene(stack, tmp_path, broken.kind)
        scene.send_and_receive(b"1")
        PROVOKED.get(broken.kind, lambda scene: None)(scene)
        assert broken.is_started.wait(20.0), "the loop is part of this scene"
        # It works again: rounds end well, and messages still arrive.
        assert broken.good_rounds.acquire(timeout=30.0)
        scene.send_and_receive(b"2")
        eventually(lambda: scene.consumer.statistics["commits"] > 0, "commits go on")
        assert broken.errors >= broken.times
        # Other loops of the kind may still be at their first rounds.
        eventually(
            lambda: sum(each.errors for each in broken.troubled()) == broken.errors,
            "every error is counted",
        )
        assert all("broken for a test" in each.last_error for each in broken.troubled())
        eventually(
            lambda: all(each.failing_ms is None for each in broken.troubled()),
            "no loop fails any more",
            60.0,  # a round may wait for its whole interval, 20 s, before it has ended well
        )
        order = [body for at, body in enumerate(scene.bodies) if body not in scene.bodies[:at]]
        assert order == [b"0", b"1", b"2"]
    logged = [
        each
        for each in caplog.messages
        if each.startswith(broken.kind) and "internal error" in each
    ]
    assert len(logged) <= len(broken.supervisors), "one line per outage"
