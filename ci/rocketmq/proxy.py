"""RocketMQ's proxy, which gRPC clients talk to; it knows the brokers by the name server."""

from __future__ import annotations

import json
import socket
from typing import Any

from jars import PROXY as ARTIFACTS
from jars import class_path
from processes import EMPTY_LOGBACK, Part

PROXY = "proxy"


def proxy_facts(grpc_port: int, remoting_port: int, name_server: str) -> dict[str, Any]:
    """What it is started with; its port is gRPC's."""
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
        settings.write_text(json.dumps(self.facts["settings"], indent=1))
        return self.java(
            class_path(self.version, ARTIFACTS),
            *("-n", self.facts["settings"]["namesrvAddr"], "-pm", "cluster", "-pc", str(settings)),
        )

    def is_ready(self, name_server: str) -> bool:
        """Whether it listens; it does so last."""
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError:
            return False
        return True
