"""Fails each test in which a secret of the suite is logged, or is in an error or a repr.

The secrets are those that settings are made with, whichever test makes them: secret keys, tokens,
keys of a broker's accounts. Every line that a logger of ordermq is given is read, also below its
level, and every error of ours, as it is made. Access keys are names and no secrets.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.errors import OrderMQError

_SHORTEST = 8  # a shorter one may be a part of any word


class Watch:
    """The secrets that are known, and where they were seen since the last test."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.leaks: list[str] = []

    def know(self, *secrets: str) -> None:
        self.secrets.update(each for each in secrets if len(each) >= _SHORTEST)

    def read(self, text: str, where: str) -> None:
        # The secret itself stays out of the report, which is a log, too.
        if any(secret in text for secret in self.secrets):
            self.leaks.append(where)

    def take(self) -> list[str]:
        found, self.leaks = sorted(set(self.leaks)), []
        return found


WATCH = Watch()


def _after(kind: type, name: str, check: Callable[[Any], None]) -> None:
    """Call `check` with the object after each call of one of its methods."""
    method = getattr(kind, name)

    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        check(self)
        return result

    setattr(kind, name, checked)


def _check_remoting(config: RemotingConfig) -> None:
    WATCH.know(config.secret_key, config.security_token)
    WATCH.read(repr(config), "repr of a RemotingConfig")


def _check_broker(config: BrokerConfig) -> None:
    WATCH.know(*config.accounts.values())
    WATCH.read(repr(config), "repr of a BrokerConfig")


def _check_error(error: OrderMQError) -> None:
    WATCH.read(f"{error} {error!r} {error.__dict__}", f"text of a {type(error).__name__}")


def _watch_level(level: str) -> None:
    log = getattr(logging.Logger, level)

    def checked(self: logging.Logger, message: object, *arguments: Any, **named: Any) -> None:
        if WATCH.secrets and self.name.startswith("ordermq"):
            record = logging.LogRecord(self.name, 0, "", 0, message, arguments, None)
            text = record.getMessage()
            raised = named.get("exc_info")
            if isinstance(raised, BaseException):
                text += "".join(traceback.format_exception(raised))
            elif raised:
                text += traceback.format_exc()
            WATCH.read(text, f"{level} of {self.name}: {message}")
        # One frame more between the caller and logging, which tells the caller's line.
        log(self, message, *arguments, **named | {"stacklevel": named.get("stacklevel", 1) + 1})

    setattr(logging.Logger, level, checked)


def pytest_configure(config: pytest.Config) -> None:
    _after(RemotingConfig, "__post_init__", _check_remoting)
    _after(BrokerConfig, "__post_init__", _check_broker)
    _after(OrderMQError, "__init__", _check_error)
    for level in ("debug", "info", "warning", "error", "critical"):  # `exception` calls `error`
        _watch_level(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    for name, text in report.sections:
        WATCH.read(text, name)
    if leaks := WATCH.take():
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: a secret is in: {'; '.join(leaks)}"
    return report
