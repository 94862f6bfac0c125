"""uvloop where it is installed; a forced choice is kept or refused, never replaced."""

from __future__ import annotations

import sys

import pytest

from ordermq.errors import ConfigError
from ordermq.remoting.event_loop import new_event_loop


@pytest.mark.parametrize(("forced", "module"), [("asyncio", "asyncio"), ("uvloop", "uvloop")])
def test_the_variable_forces_a_loop(
    monkeypatch: pytest.MonkeyPatch, forced: str, module: str
) -> None:
    monkeypatch.setenv("ORDERMQ_EVENT_LOOP", forced)
    loop = new_event_loop()
    assert type(loop).__module__.split(".")[0] == module
    loop.close()


def test_without_uvloop_asyncio_is_used_unless_uvloop_is_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # what importing it then raises is ImportError
    monkeypatch.delenv("ORDERMQ_EVENT_LOOP", raising=False)
    loop = new_event_loop()
    assert type(loop).__module__.startswith("asyncio")
    loop.close()
    monkeypatch.setenv("ORDERMQ_EVENT_LOOP", "uvloop")
    with pytest.raises(ConfigError, match=r"pip install 'ordermq\[uvloop\]'"):
        new_event_loop()


def test_an_unknown_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERMQ_EVENT_LOOP", "gevent")
    with pytest.raises(ConfigError, match=r"gevent.*expected asyncio or uvloop"):
        new_event_loop()
