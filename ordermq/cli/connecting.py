"""How a command reaches its brokers: name servers, account, TLS."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from ordermq.cli.output import ExitCode, fail
from ordermq.config import TlsVerify
from ordermq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    RouteError,
)

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Servers:
    """What a client is made with: `PushConsumer(group, **servers.settings())`."""

    name_servers: str
    given: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        return {"name_servers": self.name_servers, **self.given}


_OPTIONS = (
    click.option(
        "--name-servers",
        default="127.0.0.1:9876",
        show_default=True,
        envvar="ORDERMQ_NAME_SERVERS",
        show_envvar=True,
        help="host:port, several joined by ';'.",
    ),
    click.option(
        "--access-key", envvar="ORDERMQ_ACCESS_KEY", show_envvar=True, help="Signs requests."
    ),
    click.option(
        "--secret-key",
        envvar="ORDERMQ_SECRET_KEY",
        show_envvar=True,
        help="Of the access key; better in the environment, where no list of processes shows it.",
    ),
    click.option("--tls", is_flag=True, help="Connect with TLS."),
    click.option("--tls-ca-file", type=click.Path(exists=True), help="Who may sign servers."),
    click.option(
        "--tls-verify",
        type=click.Choice([each.value for each in TlsVerify]),
        help="What is asked of a server's certificate; default: full.",
    ),
)
_NAMES = ("access_key", "secret_key", "tls", "tls_ca_file", "tls_verify")


def servers_options(function: _F) -> _F:
    """The options that say where the servers are; the command gets them as `servers`."""

    @functools.wraps(function)
    def command(name_servers: str, **arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in _NAMES}
        servers = Servers(name_servers, {name: value for name, value in given.items() if value})
        return function(servers=servers, **arguments)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


@contextmanager
def explained() -> Iterator[None]:
    """Ends the command with a sentence and an exit code where a client would raise."""
    try:
        yield
    except ConfigError as error:
        fail(str(error), ExitCode.USAGE)
    except (RouteError, ConnectFailed, ConnectionLost, RequestTimeout) as error:
        fail(str(error), ExitCode.UNREACHABLE)
    except BrokerError as error:
        fail(str(error))
