"""A group's offset of one queue at its broker, for consumers that are no members of the group."""

from __future__ import annotations

from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import ConsumerData, Heartbeat
from ordermq.remoting.codes import ResponseCode


async def stored_offset(client: ClientSession, group: str, queue: MessageQueue) -> int | None:
    """What the broker has; None if nothing.

    Raises: RemotingError, RouteError: it could not be asked.
    """
    address = client.routes.master_of(queue.broker_name)
    offset = await client.api.query_offset(address, group, queue)
    return offset if offset is not None and offset >= 0 else None


async def store_offset(client: ClientSession, group: str, queue: MessageQueue, offset: int) -> None:
    """Store it, and return when the broker has acknowledged it.

    Raises: RemotingError, RouteError: the broker did not take it.
    """
    address = client.routes.master_of(queue.broker_name)
    try:
        await client.api.update_offset(address, group, queue, offset)
        return
    except BrokerError as error:
        if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
    # A heartbeat of a member makes the group. To stay one would take a share of the queues away
    # from members to come: brokers list whoever beats, and members count them.
    member = ConsumerData(group, (), consume_type="CONSUME_ACTIVELY")
    await client.api.heartbeat(address, Heartbeat(client.client_id, (member,)))
    await client.api.unregister(address, consumer_group=group)
    await client.api.update_offset(address, group, queue, offset)
