"""The process of one consumer: `python -m ordermq.cli.run.consumer_process`, started by
`ordermq run`.

It answers its supervisor's questions through a socket: a line of JSON each. When the supervisor is
gone, it stops.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import logging
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ordermq.cli.output import ExitCode
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.errors import ConfigError, OrderMQError, StateError
from ordermq.health import Health
from ordermq.model.message_queue import MessageQueue

_log = logging.getLogger("ordermq.run")
_EXPECTED = (
    "expected a PushConsumer, an AsyncConsumer with a listener, or a function that makes one"
)


class RunnableConsumer(Protocol):
    """A consumer that runs until it is stopped: a PushConsumer, an AsyncConsumer, or your own."""

    def run(self, timeout_s: float) -> bool | Awaitable[bool]:
        """Consume until `stop`, SIGTERM or SIGINT; return False if a queue was not handed over."""

    def stop(self) -> None:
        """Make `run` return; from any thread."""

    def assigned_queues(self) -> Sequence[MessageQueue]:
        """Return the queues held now."""


class NoConsumer(Exception):
    """The target is not there, or no consumer."""


def load(target: str) -> RunnableConsumer:
    """Import `module:attribute`, and call what makes a consumer.

    Raises: NoConsumer: it is not there, or none. Whatever importing it raises.
    """
    module, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # What the module itself imports and does not find is shown with its traceback.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NoConsumer(
            f"{target}: there is no module {error.name!r} in {Path.cwd()} or among those installed"
        ) from None
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise NoConsumer(f"{target}: {found!r} has no {name!r}") from None
    if isinstance(found, type) or (callable(found) and not hasattr(found, "run")):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise NoConsumer(
                f"{target} is a function with arguments ({error}): {_EXPECTED}"
            ) from None
        except ValueError:
            pass  # a callable in C: nobody knows its arguments before the call
        found = found()
    if missing := [name for name in ("run", "stop", "assigned_queues") if not hasattr(found, name)]:
        raise NoConsumer(
            f"{target} is a {type(found).__name__} without {', '.join(missing)}: {_EXPECTED}"
        )
    consumer: RunnableConsumer = found
    return consumer


def answer_questions(
    channel: socket.socket, consumer: RunnableConsumer, scrape: Callable[[], str]
) -> None:
    """Answer each line of the supervisor; when it is gone, stop the consumer."""
    answers: dict[str, Callable[[], object]] = {
        "state": lambda: _state_of(consumer),
        "metrics": scrape,
    }
    with channel, channel.makefile("rwb") as lines:
        try:
            for line in lines:
                number, question = json.loads(line)
                lines.write(json.dumps([number, _answer(answers[question])]).encode() + b"\n")
                lines.flush()
        except OSError:
            pass  # as if it had ended in order
    _log.warning("the supervisor is gone; stopping")
    consumer.stop()


def _answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - the supervisor is told nothing, and asks again
        _log.exception("cannot answer the supervisor")
        return None


def _blocking(consumer: RunnableConsumer) -> RunnableConsumer:
    """Return the consumer inside an AsyncConsumer, which any thread may ask; else `consumer`."""
    inside: RunnableConsumer = getattr(consumer, "blocking", consumer)
    return inside


def _state_of(consumer: RunnableConsumer) -> dict[str, object]:
    ask: Callable[[], Health] | None = getattr(_blocking(consumer), "health", None)
    held = len(consumer.assigned_queues())
    # Without a health of its own it is ready once it holds something.
    return {"is_ready": bool(held) if ask is None else ask().is_ready, "queues": held}


def _scraper(consumer: RunnableConsumer) -> Callable[[], str]:
    from prometheus_client import REGISTRY, generate_latest

    from ordermq.metrics.prometheus import PrometheusMetrics

    watched = _blocking(consumer)
    if not isinstance(watched, PushConsumer):
        _log.warning("%r: only the program's own metrics are served", consumer)
        return lambda: generate_latest(REGISTRY).decode()
    try:
        metrics = PrometheusMetrics()
    except ValueError:  # the module has made one, which watches what it wants
        return lambda: generate_latest(REGISTRY).decode()
    metrics.watch_consumer(watched)
    return lambda: generate_latest(REGISTRY).decode()


def main(arguments: Sequence[str]) -> int:
    """Run the consumer of the command line; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--stop-timeout", type=float, required=True)
    parser.add_argument("--metrics", action="store_true")
    given = parser.parse_args(arguments)
    channel = socket.socket(fileno=given.channel)
    try:
        consumer = load(given.target)
    except (NoConsumer, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the supervisor forwards it
        return ExitCode.USAGE
    except Exception:  # noqa: BLE001 - the user's module; nothing can run
        traceback.print_exc()
        return ExitCode.USAGE
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
    try:
        scrape = _scraper(consumer) if given.metrics else lambda: ""
        threading.Thread(
            target=answer_questions, args=(channel, consumer, scrape), daemon=True
        ).start()
        return ExitCode.OK if _run(consumer, given.stop_timeout) else ExitCode.FAILED
    except (ConfigError, StateError) as error:
        _log.error("%s", error)
        return ExitCode.USAGE
    except OrderMQError as error:
        _log.error("%s", error)
        return ExitCode.UNREACHABLE


def _run(consumer: RunnableConsumer, stop_timeout_s: float) -> bool:
    ran = consumer.run(stop_timeout_s)
    if not inspect.isawaitable(ran):
        return ran

    async def wait() -> bool:
        return await ran

    return asyncio.run(wait())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
