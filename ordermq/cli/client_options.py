"""Options of every command that connects to a cluster: addresses, account, TLS."""

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
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    OrderMQError,
    RequestTimeout,
    RouteError,
)
from ordermq.model.names import group_named

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Servers:
    """The arguments of a client: `PushConsumer(group, **servers.settings())`."""

    name_servers: str
    given: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        return {"name_servers": self.name_servers, **self.given}


# The group of a command that looks for it: also by the name of its retry or dead-letter topic.
group_argument = click.argument("group", callback=lambda context, argument, name: group_named(name))

_OPTIONS = (
    click.option(
        "-n",
        "--name-servers",
        default="127.0.0.1:9876",
        show_default=True,
        envvar="ORDERMQ_NAME_SERVERS",
        show_envvar=True,
        help="Name servers as host:port, several separated by ';'.",
    ),
    click.option(
        "--address-map",
        envvar="ORDERMQ_ADDRESS_MAP",
        show_envvar=True,
        metavar="TOLD=REACHABLE",
        help="Where to reach brokers whose own addresses cannot be reached from here, as "
        "10.0.0.5:10911=localhost:10911; several separated by ';'.",
    ),
    click.option(
        "--access-key",
        envvar="ORDERMQ_ACCESS_KEY",
        show_envvar=True,
        help="Account to sign requests with.",
    ),
    click.option(
        "--secret-key",
        envvar="ORDERMQ_SECRET_KEY",
        show_envvar=True,
        help="Secret of the account; in the environment it is hidden from the process list.",
    ),
    click.option("--tls", is_flag=True, help="Connect with TLS."),
    click.option(
        "--tls-ca-file",
        type=click.Path(exists=True),
        help="CA bundle (PEM) to verify the server with.",
    ),
    click.option(
        "--tls-verify",
        type=click.Choice([each.value for each in TlsVerify]),
        help="How to verify the server's certificate; default: full.",
    ),
)
_NAMES = ("address_map", "access_key", "secret_key", "tls", "tls_ca_file", "tls_verify")


def client_options(function: _F) -> _F:
    """Add the options of the connection; the command gets them as `servers`."""

    # It also copies the options that decorators nearer to the function have attached already.
    @functools.wraps(function)
    def command(name_servers: str, **arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in _NAMES}
        # Options that were not given are left out, so that the configuration's defaults apply.
        servers = Servers(name_servers, {name: value for name, value in given.items() if value})
        return function(servers=servers, **arguments)

    # The help shows options in the reverse of the order in which they are added.
    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the command with a message and an exit code where a client raises."""
    try:
        yield
    except ConfigError as error:
        fail(_with_notes(error), ExitCode.USAGE)
    # An exit code of its own: a script may wait and try again.
    except (RouteError, ConnectFailed, ConnectionLost, RequestTimeout) as error:
        fail(_with_notes(error), ExitCode.UNREACHABLE)
    except OrderMQError as error:
        fail(_with_notes(error))


def _with_notes(error: OrderMQError) -> str:
    return "; ".join((str(error), *getattr(error, "__notes__", ())))
