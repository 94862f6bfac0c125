"""The name server's side: routes, clusters, topic lists
(docs/internals/protocol.md#name-server)."""

from __future__ import annotations

from typing import Any

import orjson

from ordermq.broker.topics import Topic
from ordermq.config import BrokerConfig
from ordermq.remoting.bodies import BrokerData, QueueData, TopicRoute


def topic_route(config: BrokerConfig, topic: Topic, address: str) -> TopicRoute:
    """One broker, this one, at the address the client dialled."""
    return TopicRoute(
        (BrokerData(config.broker_name, {0: address}, config.cluster_name),),
        (QueueData(config.broker_name, topic.read_queues, topic.write_queues, topic.perm),),
    )


def cluster_info(config: BrokerConfig, address: str) -> bytes:
    """Answer body of GET_BROKER_CLUSTER_INFO."""
    broker: dict[str, Any] = {
        "brokerAddrs": {"0": address},
        "brokerName": config.broker_name,
        "cluster": config.cluster_name,
        "enableActingMaster": False,
    }
    return orjson.dumps(
        {
            "brokerAddrTable": {config.broker_name: broker},
            "clusterAddrTable": {config.cluster_name: [config.broker_name]},
        }
    )
