"""Settings: frozen dataclasses with RocketMQ's names and the unit in the name.

A value out of its range raises `ConfigError` at construction, naming the field and the range. The
comment above each field says what it sets, `number(default, lowest, highest)` its range.

| settings of | file |
|---|---|
| every client: its group and name servers; reading a URL or the environment | client.py |
| connections, accounts, namespaces, TLS | remoting.py |
| brokers behind other addresses | address_map.py |
| push consumers; fetching (`PullConfig`), leases, rebalance of all | consumer.py |
| lite pull and pull consumers | pull_consumers.py |
| producers | producer.py |
| the embedded broker | broker.py |
| message traces | trace.py |
| checks of values, flat settings of all groups | checks.py |
| names of other clients, and what to write instead | foreign_names.py, foreign_methods.py |

`settings.py` has all of them again as keywords, for type checkers; ci/settings_types.py writes it.
"""

from typing import TYPE_CHECKING

from ordermq.lazy_imports import lazy_names

if TYPE_CHECKING:
    from ordermq.config.broker import AccessPolicy, BrokerConfig, Durability
    from ordermq.config.checks import DAY_MS
    from ordermq.config.client import ClientConfig
    from ordermq.config.consumer import (
        Allocation,
        AllocationStrategy,
        ConsumeConfig,
        ConsumeFromWhere,
        ConsumeMode,
        ConsumerConfig,
        Keyless,
        LeaseConfig,
        MessageModel,
        PopConfig,
        PullConfig,
        RebalanceConfig,
    )
    from ordermq.config.producer import (
        CompressionType,
        ProducerConfig,
        SendConfig,
        TransactionConfig,
    )
    from ordermq.config.pull_consumers import (
        DirectPullConfig,
        LitePullConfig,
        LitePullConsumerConfig,
        PullConsumerConfig,
    )
    from ordermq.config.remoting import (
        SERIALIZE_TYPE_VARIABLE,
        RemotingConfig,
        SerializeType,
        TlsVerify,
    )
    from ordermq.config.trace import TraceConfig

__all__ = [
    "DAY_MS",
    "SERIALIZE_TYPE_VARIABLE",
    "AccessPolicy",
    "Allocation",
    "AllocationStrategy",
    "BrokerConfig",
    "ClientConfig",
    "CompressionType",
    "ConsumeConfig",
    "ConsumeFromWhere",
    "ConsumeMode",
    "ConsumerConfig",
    "DirectPullConfig",
    "Durability",
    "Keyless",
    "LeaseConfig",
    "LitePullConfig",
    "LitePullConsumerConfig",
    "MessageModel",
    "PopConfig",
    "ProducerConfig",
    "PullConfig",
    "PullConsumerConfig",
    "RebalanceConfig",
    "RemotingConfig",
    "SendConfig",
    "SerializeType",
    "TlsVerify",
    "TraceConfig",
    "TransactionConfig",
]

# The same names by their file, for `__getattr__`: a producer needs no settings of consumers, and
# each class takes as long to make as a hundred lines to load.
_HOMES = {
    "broker": (
        "AccessPolicy",
        "BrokerConfig",
        "Durability",
    ),
    "checks": ("DAY_MS",),
    "client": ("ClientConfig",),
    "consumer": (
        "Allocation",
        "AllocationStrategy",
        "ConsumeConfig",
        "ConsumeFromWhere",
        "ConsumeMode",
        "ConsumerConfig",
        "Keyless",
        "LeaseConfig",
        "MessageModel",
        "PopConfig",
        "PullConfig",
        "RebalanceConfig",
    ),
    "producer": (
        "CompressionType",
        "ProducerConfig",
        "SendConfig",
        "TransactionConfig",
    ),
    "pull_consumers": (
        "DirectPullConfig",
        "LitePullConfig",
        "LitePullConsumerConfig",
        "PullConsumerConfig",
    ),
    "remoting": (
        "SERIALIZE_TYPE_VARIABLE",
        "RemotingConfig",
        "SerializeType",
        "TlsVerify",
    ),
    "trace": ("TraceConfig",),
}

if not TYPE_CHECKING:  # to them, each name would be there, also a misspelt one
    __getattr__, __dir__ = lazy_names("ordermq.config", _HOMES)
