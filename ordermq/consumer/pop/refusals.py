"""Settings that members with leases cannot have, refused before anything starts."""

from __future__ import annotations

from ordermq.config import (
    ConsumeFromWhere,
    ConsumerConfig,
    LitePullConsumerConfig,
    MessageModel,
)
from ordermq.errors import ConfigError

_SHORTEST_PROXY_LEASE_MS = 10_000


def refuse_for_pops(
    config: ConsumerConfig | LitePullConsumerConfig,
    group: str,
    *,
    is_behind_proxy: bool,
    commits: bool,
    deduplicates: int,
    problem: str = "",
) -> None:
    """Raise ConfigError unless a member of these settings can pop.

    Args:
        is_behind_proxy: it leases over gRPC, which allows less.
        commits: what is done is committed without the user's doing.
        deduplicates: the setting `deduplicate`.
        problem: one that the caller has found itself.
    """
    if config.message_model is MessageModel.BROADCASTING:
        problem = "message_model='broadcasting': a popped message goes to one member"
    elif problem:
        pass
    elif not commits:
        problem = (
            "auto_commit=False: messages that are held back would keep their queue from handing "
            "out the next ones"
        )
    elif deduplicates:
        problem = "deduplicate: what was read before a batch is not known"
    if problem:
        raise ConfigError(
            f"consume_mode='pop' is not for {problem}; or leave consume_mode out", group=group
        )
    if is_behind_proxy:
        _refuse_at_proxy(config, group)


def _refuse_at_proxy(config: ConsumerConfig | LitePullConsumerConfig, group: str) -> None:
    problem = ""
    if config.rebalance.consume_from_where is not ConsumeFromWhere.LAST_OFFSET:
        problem = "consume_from_where: a proxy starts every new group at the end of its queues"
    elif config.pop.pop_invisible_ms < _SHORTEST_PROXY_LEASE_MS:
        problem = (
            f"pop_invisible_ms={config.pop.pop_invisible_ms}: a proxy leases messages for "
            f"{_SHORTEST_PROXY_LEASE_MS} ms at least"
        )
    elif config.remoting.namespace:
        problem = "namespace: give namespace_v2, that of RocketMQ 5"
    if problem:
        raise ConfigError(f"grpc:// is not for {problem}", group=group)
