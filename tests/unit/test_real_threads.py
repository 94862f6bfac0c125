"""Programs in which threads are not threads: clients refuse, with what to do instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from ordermq import LitePullConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
from ordermq.admin.admin import Admin
from ordermq.broker import EmbeddedBroker
from ordermq.errors import StateError

AT = "127.0.0.1:9876"
MAKERS: dict[str, Callable[[], object]] = {
    "Producer": lambda: Producer("g", name_servers=AT),
    "TransactionProducer": lambda: TransactionProducer(
        "g", check=lambda _: None, name_servers=AT
    ),
    "PushConsumer": lambda: PushConsumer("g", name_servers=AT),
    "PullConsumer": lambda: PullConsumer("g", name_servers=AT),
    "LitePullConsumer": lambda: LitePullConsumer("g", name_servers=AT),
    "Admin": lambda: Admin(AT),
    "EmbeddedBroker": EmbeddedBroker,
}  # fmt: skip


def patch(monkeypatch: pytest.MonkeyPatch, module: str, function: str, patched: set[str]) -> None:
    """Pretend that a library, which need not be installed, has patched these modules."""
    library = ModuleType(module)
    setattr(library, function, patched.__contains__)
    monkeypatch.setitem(sys.modules, module, library)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("library", "function", "patched", "remedy"),
    [
        ("gevent.monkey", "is_module_patched", "queue", "patch_all(thread=False, socket=False, "),
        ("eventlet.patcher", "is_monkey_patched", "thread", "monkey_patch(thread=False, socket="),
    ],
)
def test_a_patched_program_is_told_how_to_patch(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    library: str,
    function: str,
    patched: str,
    remedy: str,
) -> None:
    patch(monkeypatch, library, function, {patched, "time"})
    with pytest.raises(StateError) as refusal:
        MAKERS[kind]()
    assert str(refusal.value).startswith(f"{kind}: ")
    assert f"has patched {patched}," in str(refusal.value)
    assert remedy in str(refusal.value)


def test_a_program_that_is_patched_as_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "gevent.monkey", "is_module_patched", {"time", "ssl", "os", "subprocess"})
    assert repr(Producer("g", name_servers=AT)).startswith("<Producer")


def test_a_subinterpreter_is_told_where_to_work() -> None:
    script = """
import os
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
os.environ["ORDERMQ_CORE"] = "reference"
interpreters.run_string(interpreters.create(), '''
from ordermq import Producer
try:
    Producer("g", name_servers="127.0.0.1:9876")
except Exception as error:
    print(error, flush=True)
''')
os._exit(0)  # Python 3.12.1 aborts at the end of one that has imported asyncio, logging and ssl
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert "Producer in a subinterpreter" in ended.stdout
