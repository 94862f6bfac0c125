"""Settings of every old client before its start, under the names of both packages."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import TracebackType
from typing import Any, Self

from ordermq.errors import ConfigError
from ordermq.rocketmq.exceptions import NullPointerException, RocketMQException
from ordermq.rocketmq.message import Text, text_of
from ordermq.rocketmq.name_server_domain import name_servers_at

_log = logging.getLogger("ordermq.rocketmq")
_warned: set[str] = set()


def warn_once(what: str) -> None:
    """Warn about a setting without effect, once per process."""
    if what not in _warned:
        _warned.add(what)
        _log.warning("%s", what)


class ClientSettings:
    """Collects settings; `start` creates the client of ordermq from them.

    Setting anything on a running client raises RocketMQException: the C++ library ignored it.
    """

    def __init__(self, group_id: Text) -> None:
        self._group = text_of(group_id, "group")
        self._name_servers = ""
        self._domain = ""
        self._instance_name = ""
        self._credentials: dict[str, str] = {}
        # The spelling of these setters tells which of the two clients a program was written for.
        self._speaks_044 = False

    @property
    def _is_running(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def shutdown(self) -> None:
        raise NotImplementedError

    def _set_group(self, group: Text) -> None:
        self._require_not_running()
        self._group = text_of(group, "group")

    def set_instance_name(self, name: Text) -> None:
        """Set a part of the client id; the rest of the id is unique, as the process id was."""
        self._require_not_running()
        self._instance_name = text_of(name, "instance name")

    def set_name_server_address(self, addr: Text) -> None:
        """Set the name servers: `host:port`, several joined by `;`."""
        self._set_address(addr, False)

    def set_namesrv_addr(self, addr: Text) -> None:
        """Set the name servers: `host:port`, several joined by `;`."""
        self._set_address(addr, True)

    def set_name_server_domain(self, domain: Text) -> None:
        """Set a web page that lists the name servers; it is read once, at the start."""
        self._set_domain(domain, False)

    def set_namesrv_domain(self, domain: Text) -> None:
        """Set a web page that lists the name servers; it is read once, at the start."""
        self._set_domain(domain, True)

    def _set_address(self, addr: Text, speaks_044: bool) -> None:
        self._require_not_running()
        self._name_servers = text_of(addr, "name server address")
        self._speaks_044 = speaks_044

    def _set_domain(self, domain: Text, speaks_044: bool) -> None:
        self._require_not_running()
        self._domain = text_of(domain, "name server domain")
        self._speaks_044 = speaks_044

    def set_session_credentials(
        self, access_key: Text, access_secret: Text, channel: Text = ""
    ) -> None:
        """Set the account that signs requests. `channel` is not sent: Apache brokers ignore it."""
        self._require_not_running()
        self._credentials = {
            "access_key": text_of(access_key, "access key"),
            "secret_key": text_of(access_secret, "access secret"),
        }
        if text_of(channel, "channel"):
            warn_once("set_session_credentials: the channel is not sent; brokers do not use it")

    def _endpoint(self) -> dict[str, Any]:
        """Return the arguments that every client of ordermq accepts.

        Raises: ConfigError: no valid address. ConnectFailed: the domain does not answer.
        """
        addresses = self._name_servers or (name_servers_at(self._domain) if self._domain else "")
        addresses = addresses or os.environ.get("NAMESRV_ADDR", "")
        if not addresses:
            raise ConfigError(
                "no name server: call set_name_server_address('host:port') or set NAMESRV_ADDR",
                group=self._group,
            )
        plain = [part.strip().removeprefix("http://") for part in addresses.split(";")]
        return {
            "name_servers": [part for part in plain if part],
            "instance_name": self._instance_name or None,
            **self._credentials,
        }

    def _require_not_running(self) -> None:
        if self._is_running:
            raise RocketMQException(
                f"{type(self).__name__} {self._group!r} runs: set this before start()"
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exec_type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


def shut_down_unreferenced(client: ClientSettings) -> None:
    """Run `shutdown` on a separate thread; for `__del__`.

    The collector runs on any thread, the I/O thread too, where waiting would hang for ever. While
    the interpreter ends no thread begins any more, so the client goes with the process.
    """
    if not sys.is_finalizing():
        threading.Thread(target=client.shutdown, name="ordermq-shutdown", daemon=True).start()


def positive(value: int, what: str) -> int:
    """Return a count that the C library would have accepted.

    Raises: NullPointerException: 0 or less.
    """
    if value <= 0:
        raise NullPointerException(f"{what}={value}: expected at least 1")
    return value
