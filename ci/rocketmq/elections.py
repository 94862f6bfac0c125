"""Three replicas of one broker that choose their master themselves.

By a controller, which runs in the name server's process (RocketMQ 5), or by DLedger, where the
replicas vote (4.9 and 5). A message is acknowledged when a majority has it: DLedger's own rule, and
of a controller's brokers by the settings below.
https://rocketmq.apache.org/docs/deploymentOperations/03autofailover
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTROLLER, DLEDGER = "controller", "dledger"
KINDS = (CONTROLLER, DLEDGER)
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
REPLICAS = ("broker-a-0", "broker-a-1", "broker-a-2")
_GROUP = "broker-a"


def replicated(
    name_server: dict[str, Any], folder: Path, kind: str, ports: Iterator[int], java: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the plans of the replicas; adds the controller to the name server's plan."""
    address = f"127.0.0.1:{name_server['port']}"
    controller = f"127.0.0.1:{next(ports)}"
    if kind == CONTROLLER:
        name_server["settings"] |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(folder / "name-server" / "controller"),
            "enableElectUncleanMaster": "false",
            "notifyBrokerRoleChanged": "true",
            "scanNotActiveBrokerInterval": "1000",
        }
        name_server["java"] = ["-Xms64m", "-Xmx256m"]
    votes = [next(ports) for _ in REPLICAS]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(votes))
    plans = {}
    for number, part in enumerate(REPLICAS):
        port = next(ports)
        store = folder / part / "store"
        own = {
            "brokerName": _GROUP,
            "listenPort": str(port),
            "namesrvAddr": address,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
        }
        if kind == CONTROLLER:
            own |= {
                "enableControllerMode": "true",
                "controllerAddr": controller,
                "haListenPort": str(port + 1),
                "brokerRole": "SLAVE",  # until the controller says otherwise
                "allAckInSyncStateSet": "true",
                "minInSyncReplicas": "2",
                "inSyncReplicas": "2",
                "enableAutoInSyncReplicas": "false",
                "brokerHeartbeatInterval": "500",
                "controllerHeartBeatTimeoutMills": "3000",
                "syncControllerMetadataPeriod": "1000",
            }
        else:
            own |= {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": _GROUP,
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
            }
        plans[part] = {"main": BROKER, "port": port, "java": java, "settings": own}
    return plans
