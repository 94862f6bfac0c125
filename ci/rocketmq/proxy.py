"""RocketMQ's proxy for gRPC clients; it finds the brokers through the name server."""

from __future__ import annotations

import json
import socket
from typing import Any

from jars import PROXY as ARTIFACTS
from jars import class_path
from processes import EMPTY_LOGBACK, Part

PROXY = "proxy"


def proxy_plan(grpc_port: int, remoting_port: int, name_server: str) -> dict[str, Any]:
    """Return the plan of a proxy; its port is the one for gRPC."""
    return {
        "main": "org.apache.rocketmq.proxy.ProxyStartup",
        "port": grpc_port,
        "java": ["-Xms256m", "-Xmx768m"],
        "settings": {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": name_server,
            "grpcServerPort": grpc_port,
            "remotingListenPort": remoting_port,
            "localServeAddr": "127.0.0.1",
            "useEndpointPortFromRequest": True,
            "enableACL": False,
        },
    }


class Proxy(Part):
    """A proxy of an instance, in cluster mode."""

    def command(self) -> list[str]:
        (self.conf / "rmq.proxy.logback.xml").write_text(EMPTY_LOGBACK)
        settings = self.conf / "rmq-proxy.json"
        settings.write_text(json.dumps(self.plan["settings"], indent=1))
        return self.java(
            class_path(self.version, ARTIFACTS),
            *("-n", self.plan["settings"]["namesrvAddr"], "-pm", "cluster", "-pc", str(settings)),
        )

    def is_ready(self, name_server: str) -> bool:
        """Connect to the gRPC port, which the proxy opens last."""
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError:
            return False
        return True
