"""Parts of a member that pops, instead of those of one that pulls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ordermq.client.user_code import UserCode
from ordermq.config import LeaseConfig, PopConfig, PullConfig
from ordermq.consumer.offsets.offset_committer import BrokerOffsets, OffsetCommitter
from ordermq.consumer.pop.fetcher import PopFetcher, PopFetchParts
from ordermq.consumer.pop.leases import PopLeases, PopOffsets, ServerStarts
from ordermq.consumer.pop.returns import MembersEnd, Returns
from ordermq.consumer.pop.transport import PopTransport, RemotingPop
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.consumer.queue.receiver import Receiver
from ordermq.consumer.queue.statistics import MemberContext
from ordermq.model.message_queue import MessageQueue

if TYPE_CHECKING:
    from ordermq.consumer.offsets.offset_store import AnyOffsetStore
    from ordermq.consumer.pop.claims import ClaimedOffsets


class PopParts:
    """Transport, leases, offsets and fetcher of one member, which know each other.

    Args:
        is_ordered: the group consumes in order.
        from_first: a queue of which nothing is stored starts at its first message.
        held: returns the queues held at this moment.
        end: as of `Returns`.
    """

    def __init__(
        self,
        member: MemberContext,
        lease: LeaseConfig,
        config: PopConfig,
        held: Callable[[], Iterable[AssignedQueue]],
        *,
        end: MembersEnd,
        is_ordered: bool,
        from_first: bool,
    ) -> None:
        self._member = member
        self._client = client = member.client
        self._claims: ClaimedOffsets | None = None
        returns = Returns(client, config, end)
        self._transport = self._choose_transport(
            config, returns, is_ordered=is_ordered, from_first=from_first
        )
        self.leases = PopLeases(member, self._transport, lease, config, held, is_ordered=is_ordered)
        self._transport.keep_in(self.leases)

    def _choose_transport(
        self, config: PopConfig, returns: Returns, *, is_ordered: bool, from_first: bool
    ) -> PopTransport:
        group = self._member.group
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
            self._client, starts, self._transport, self._member.recorder, self.leases.batch_at
        )

    def claims(
        self, store: AnyOffsetStore, acknowledged: PopOffsets, group: str, user_code: UserCode
    ) -> ClaimedOffsets:
        """Make the storage of the member's offsets in a store; see `ClaimedOffsets`."""
        from ordermq.consumer.pop.claims import ClaimedOffsets  # few have a database

        self._claims = ClaimedOffsets(
            store, acknowledged, self._transport, group, self._member.recorder, user_code
        )
        return self._claims

    def fetcher(
        self,
        config: PullConfig,
        offsets: OffsetCommitter,
        receiver: Receiver[Any],
        before_first: Callable[[MessageQueue], Awaitable[None]],
    ) -> PopFetcher:
        """Make the fetcher; see `PopFetcher`."""
        parts = PopFetchParts(
            self._member, config, self._transport, self.leases, offsets, receiver, self._claims
        )
        return PopFetcher(parts, before_first=before_first)
