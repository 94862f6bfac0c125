"""RocketMQ's proxy: in front of the brokers (cluster mode), or with a broker in it (local mode)."""

from __future__ import annotations

import json
import socket
from typing import Any

from console import CommandError
from jars import PROXY as ARTIFACTS
from jars import class_path
from processes import EMPTY_LOGBACK, Part

PROXY = "proxy"
MODES = ("cluster", "local")
_MAIN = "org.apache.rocketmq.proxy.ProxyStartup"
_FILE = "rmq-proxy.json"
# It makes a topic as it starts, and ends if no broker answers in time: seen on a busy machine.
_TOO_LATE = "create system broadcast topic"
_STARTS = 3


def proxy_plan(
    grpc_port: int, remoting_port: int, name_server: str, heap_mib: int, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the plan of a proxy in cluster mode; its port is the one for gRPC.

    Args: given: settings of the user, which override these.
    """
    return {
        "main": _MAIN,
        "port": grpc_port,
        "java": [f"-Xms{heap_mib // 2}m", f"-Xmx{heap_mib * 2}m"],
        "settings": _settings("CLUSTER", grpc_port, remoting_port, name_server) | given,
    }


def with_proxy(
    broker: dict[str, Any],
    grpc_port: int,
    remoting_port: int,
    name_server: str,
    given: dict[str, Any],
) -> dict[str, Any]:
    """Return the plan of a broker that runs in the process of a proxy in local mode.

    Args: given: as of `proxy_plan`.
    """
    settings = _settings("LOCAL", grpc_port, remoting_port, name_server) | given
    return broker | {"main": _MAIN, PROXY: settings}


def remoting_address(plan: dict[str, Any]) -> str | None:
    """Return the address of the remoting port in a part's plan; None: it is no proxy."""
    settings = plan.get(PROXY, plan["settings"])
    port = settings.get("remotingListenPort")
    return None if port is None else f"127.0.0.1:{port}"


def _settings(mode: str, grpc_port: int, remoting_port: int, name_server: str) -> dict[str, Any]:
    return {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": mode,
        "namesrvAddr": name_server,
        "grpcServerPort": grpc_port,
        "remotingListenPort": remoting_port,
        "localServeAddr": "127.0.0.1",
        "useEndpointPortFromRequest": True,
        "enableACL": False,
        # A test does not wait 20 s for a route, for the type of a topic, or until brokers know
        # that they may ask for the state of a transaction.
        "topicRouteServiceCacheRefreshSeconds": 1,
        "topicConfigCacheRefreshSeconds": 1,
        "transactionHeartbeatPeriodSecond": 1,
    }


class Proxy(Part):
    """A proxy of an instance, in cluster mode."""

    def wait_until_ready(self, name_server: str) -> None:
        """Wait, and start it again where a busy broker had it end."""
        for _ in range(_STARTS - 1):
            try:
                super().wait_until_ready(name_server)
            except CommandError as error:
                if _TOO_LATE not in str(error):
                    raise
                self.start()
            else:
                return
        super().wait_until_ready(name_server)

    def command(self) -> list[str]:
        settings = self.plan["settings"]
        return self._proxy_command(settings, "-n", settings["namesrvAddr"])

    def _proxy_command(self, settings: dict[str, Any], *arguments: str) -> list[str]:
        """Write the proxy's settings and return the command that starts it."""
        (self.conf / "rmq.proxy.logback.xml").write_text(EMPTY_LOGBACK)
        file = self.conf / _FILE
        file.write_text(json.dumps(settings, indent=1))
        mode = settings["proxyMode"].lower()
        classes = class_path(self.version, ARTIFACTS)
        return self.java(classes, *arguments, "-pm", mode, "-pc", str(file))

    def is_ready(self, name_server: str) -> bool:
        """Connect to its ports: that for gRPC is opened first."""
        return _is_open(self.address) and _is_open(remoting_address(self.plan))


class BrokerInProxy(Proxy):
    """A broker with a proxy in local mode around it; its address is the broker's own."""

    def command(self) -> list[str]:
        settings = self.plan[PROXY]
        Part.command(self)  # for the broker's settings
        name_server = settings["namesrvAddr"]
        return self._proxy_command(
            settings, "-n", name_server, "-bc", str(self.conf / "settings.conf")
        )

    def is_ready(self, name_server: str) -> bool:
        """As a broker, and connect to the proxy's port."""
        return Part.is_ready(self, name_server) and _is_open(remoting_address(self.plan))


def _is_open(address: str | None) -> bool:
    assert address is not None
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 2.0).close()
    except OSError:
        return False
    return True
