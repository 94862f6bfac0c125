"""Parts of a member that pops, instead of those of one that pulls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ordermq.client.session import ClientSession
from ordermq.config import LeaseConfig, PopConfig, PullConfig
from ordermq.consumer.offsets.offset_committer import BrokerOffsets, OffsetCommitter
from ordermq.consumer.pop.fetcher import PopFetcher
from ordermq.consumer.pop.leases import PopLeases, PopOffsets, ServerStarts
from ordermq.consumer.pop.returns import Returns
from ordermq.consumer.pop.transport import PopTransport, RemotingPop
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import ConsumerStatistics, EventRecorder
from ordermq.model.message_queue import MessageQueue


class PopParts:
    """Transport, leases, offsets and fetcher of one member, which know each other.

    Args:
        is_ordered: the group consumes in order.
        from_first: a queue of which nothing is stored starts at its first message.
        held: returns the queues held at this moment.
        is_late: as of `Returns`.
    """

    def __init__(
        self,
        client: ClientSession,
        group: str,
        lease: LeaseConfig,
        config: PopConfig,
        recorder: EventRecorder,
        statistics: ConsumerStatistics,
        held: Callable[[], Iterable[AssignedQueue]],
        *,
        is_late: Callable[[], bool],
        is_ordered: bool,
        from_first: bool,
    ) -> None:
        self._client = client
        self._statistics = statistics
        self._recorder = recorder
        returns = Returns(client, config, is_late)
        self._transport = self._choose_transport(
            group, config, returns, is_ordered=is_ordered, from_first=from_first
        )
        self.leases = PopLeases(
            client,
            self._transport,
            lease,
            config,
            recorder,
            statistics,
            held,
            is_ordered=is_ordered,
        )

    def _choose_transport(
        self, group: str, config: PopConfig, returns: Returns, *, is_ordered: bool, from_first: bool
    ) -> PopTransport:
        if self._client.proxy is None:
            return RemotingPop(
                self._client, group, config, returns, is_ordered=is_ordered, from_first=from_first
            )
        from ordermq.consumer.pop.grpc_pop import GrpcPop  # of an extra

        return GrpcPop(
            self._client, self._client.proxy, group, config, returns, is_ordered=is_ordered
        )

    def offsets(self, at_broker: BrokerOffsets) -> PopOffsets:
        """Make the storage of the member's offsets."""
        starts = at_broker if self._client.proxy is None else ServerStarts()
        return PopOffsets(
            self._client, starts, self._transport, self._recorder, self.leases.batch_at
        )

    def fetcher(
        self,
        config: PullConfig,
        offsets: OffsetCommitter,
        receiver: Receiver[Any],
        before_first: Callable[[MessageQueue], Awaitable[None]],
    ) -> PopFetcher:
        """Make the fetcher; see `PopFetcher`."""
        return PopFetcher(
            self._client,
            config,
            self._transport,
            self.leases,
            offsets,
            receiver,
            self._statistics,
            before_first=before_first,
        )
