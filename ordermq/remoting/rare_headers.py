"""Headers of requests that few programs make: transactions, recalls, replies, admin tools, and
those of other clients (docs/internals/protocol.md#commands).

Apart from headers.py because each class takes as long to make as a hundred lines to load.
"""

from __future__ import annotations

from dataclasses import fields

from ordermq.remoting.headers import Header, SendHeader, ext_field


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC 17; RocketMQ 4 requires all but `attributes`."""

    topic: str
    read_queue_nums: int = ext_field("readQueueNums")
    write_queue_nums: int = ext_field("writeQueueNums")
    perm: int = ext_field("perm")
    default_topic: str = ext_field("defaultTopic", default="TBW102")
    filter_type: str = ext_field("topicFilterType", default="SINGLE_TAG")
    topic_sys_flag: int = ext_field("topicSysFlag", default=0)
    order: bool = False
    attributes: str | None = None  # since 5.0: `+name=value` of each, joined with commas


class QueryMessageHeader(Header):
    """QUERY_MESSAGE 12."""

    topic: str
    key: str
    most: int = ext_field("maxNum")
    begin_ms: int = ext_field("beginTimestamp", default=0)
    end_ms: int = ext_field("endTimestamp", default=(1 << 62) - 1)
    is_unique_key: bool | None = ext_field("_UNIQUE_KEY_QUERY", default=None)


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID 33."""

    offset: int


class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET 222.

    The embedded broker takes `offset` and `queue_id`. RocketMQ's resets by time alone, and every
    queue, unless its useServerSideResetOffset is on.
    """

    topic: str
    group: str
    timestamp_ms: int = ext_field("timestamp")  # -1: the end
    is_forced: bool = ext_field("isForce", default=True)  # else no queue moves forward
    queue_id: int | None = ext_field("queueId", default=None)
    offset: int | None = None


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP 207."""

    group: str = ext_field("groupName")
    cleans_offsets: bool = ext_field("cleanOffset")


class LongSendHeader(Header):
    """SEND_MESSAGE 10: the fields of 310 under their long names."""

    producer_group: str = ext_field("producerGroup")
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    sys_flag: int = ext_field("sysFlag", default=0)
    born_timestamp_ms: int = ext_field("bornTimestamp", default=0)
    flag: int = ext_field("flag", default=0)
    default_topic: str = ext_field("defaultTopic", default="TBW102")
    default_topic_queue_nums: int = ext_field("defaultTopicQueueNums", default=4)
    properties: str = ext_field("properties", default="")
    reconsume_times: int = ext_field("reconsumeTimes", default=0)
    unit_mode: bool | None = ext_field("unitMode", default=None)
    max_reconsume_times: int | None = ext_field("maxReconsumeTimes", default=None)
    batch: bool | None = ext_field("batch", default=None)
    broker_name: str | None = ext_field("bname", default=None)

    def short(self) -> SendHeader:
        """Return the same fields as a `SendHeader`."""
        return SendHeader(**{part.name: getattr(self, part.name) for part in fields(self)})


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT 326, sent by a broker to the client that made a request."""

    producer_group: str = ext_field("producerGroup")  # of the replying producer
    topic: str = ext_field("topic")
    queue_id: int = ext_field("queueId")
    sys_flag: int = ext_field("sysFlag", default=0)
    born_timestamp_ms: int = ext_field("bornTimestamp", default=0)
    store_timestamp_ms: int = ext_field("storeTimestamp", default=0)
    flag: int = ext_field("flag", default=0)
    born_host: str | None = ext_field("bornHost", default=None)
    store_host: str | None = ext_field("storeHost", default=None)
    default_topic: str = ext_field("defaultTopic", default="TBW102")
    default_topic_queue_nums: int = ext_field("defaultTopicQueueNums", default=4)
    properties: str | None = ext_field("properties", default=None)
    reconsume_times: int = ext_field("reconsumeTimes", default=0)
    unit_mode: bool | None = ext_field("unitMode", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class RecallHeader(Header):
    """RECALL_MESSAGE 370, since 5.3.2."""

    topic: str
    recall_handle: str = ext_field("recallHandle")
    producer_group: str | None = ext_field("producerGroup", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class RecallReplyHeader(Header):
    """Response to a recall."""

    message_id: str = ext_field("msgId")


class EndTransactionHeader(Header):
    """END_TRANSACTION 37."""

    producer_group: str = ext_field("producerGroup")
    half_offset: int = ext_field("tranStateTableOffset")  # in the queue of half messages
    physical_offset: int = ext_field("commitLogOffset")  # of the half message
    commit_or_rollback: int = ext_field("commitOrRollback")  # a TransactionFlag
    message_id: str = ext_field("msgId")
    topic: str | None = ext_field("topic", default=None)  # since 5.0
    is_from_check: bool | None = ext_field("fromTransactionCheck", default=None)
    transaction_id: str | None = ext_field("transactionId", default=None)
    broker_name: str | None = ext_field("bname", default=None)


class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE 39, sent by a broker to a producer; the body is a stored record."""

    half_offset: int = ext_field("tranStateTableOffset")
    physical_offset: int = ext_field("commitLogOffset")
    message_id: str | None = ext_field("msgId", default=None)
    transaction_id: str | None = ext_field("transactionId", default=None)
    offset_message_id: str | None = ext_field("offsetMsgId", default=None)
    topic: str | None = ext_field("topic", default=None)  # the topic of half messages
    broker_name: str | None = ext_field("bname", default=None)
