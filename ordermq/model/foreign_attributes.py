"""Names that other clients have for what messages, receipts and contexts have under another one.

Those of settings, methods and classes are in `ordermq/config/foreign_names.py`, which only an error
loads; these are put into the classes when they are made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NoReturn


class _ForeignAttribute:
    """An attribute that is not there: who asks for it is told the name here."""

    # A descriptor for each name, and no `__getattr__`, which would make every access slower.
    __slots__ = ("_here", "_name")

    def __init__(self, name: str, here: str) -> None:
        self._name = name
        self._here = here

    def __repr__(self) -> str:
        return f"<a name of other clients; here {self._here}>"

    def __get__(self, record: object, kind: type) -> NoReturn:
        of = f"type object {kind.__name__!r}" if record is None else f"{kind.__name__!r} object"
        raise AttributeError(
            f"{of} has no attribute {self._name!r}: that is a name of other clients; "
            f"here {self._here}"
        )


def explain_attributes(
    kind: type, names: Mapping[str, str], internals: Collection[str] = ()
) -> None:
    """Let errors of a class explain other clients' names.

    Args:
        names: them, with what to write instead.
        internals: attributes of the class that its users are not shown, either.
    """
    for name, here in names.items():
        setattr(kind, name, _ForeignAttribute(name, here))
    hidden = {*names, *internals}

    def shown(self: object) -> Iterable[str]:
        return [name for name in object.__dir__(self) if name not in hidden]

    kind.__dir__ = shown  # type: ignore[assignment] # tab completion proposes what is there


_GETTERS: Final = {
    "getBody": "body",
    "getKeys": "keys",
    "getTags": "tags",
    "getTopic": "topic",
    "getFlag": "flag",
    "getProperties": "properties",
}
OF_VIEWS: Final = _GETTERS | {
    "getProperty": "get_property(name)",
    "getUserProperty": "get_property(name)",
    "getMsgId": "message_id",
    "getMessageId": "message_id",
    "msg_id": "message_id",
    "id": "message_id",
    "getOffsetMsgId": "offset_message_id",
    "getTransactionId": "transaction_id",
    "getQueueId": "queue_id",
    "getQueueOffset": "queue_offset, or offset",
    "getCommitLogOffset": "physical_offset",
    "commit_log_offset": "physical_offset",
    "getBrokerName": "message_queue.broker_name",
    "broker_name": "message_queue.broker_name",
    "getReconsumeTimes": "reconsume_times",
    "getBornTimestamp": "born_timestamp_ms",
    "born_timestamp": "born_timestamp_ms",
    "getBornHost": "born_host",
    "getStoreTimestamp": "store_timestamp_ms",
    "store_timestamp": "store_timestamp_ms",
    "getStoreHost": "store_host",
    "getMessageGroup": "sharding_key",
    "message_group": "sharding_key",
    # Kafka's clients have these.
    "key": "sharding_key",
    "headers": "properties",
    "partition": "queue_id",
    "timestamp": "born_timestamp_ms, or store_timestamp_ms",
}
_PROPERTY: Final = "properties={name: value} of the constructor"
OF_MESSAGES: Final = _GETTERS | {
    "setTopic": "topic= of the constructor",
    "setBody": "body= of the constructor",
    "set_body": "body= of the constructor",
    "setTags": "tags= of the constructor",
    "set_tags": "tags= of the constructor",
    "setKeys": "keys= of the constructor",
    "set_keys": "keys= of the constructor",
    "setFlag": "flag= of the constructor",
    "putUserProperty": _PROPERTY,
    "put_user_property": _PROPERTY,
    "set_property": _PROPERTY,
    "add_property": _PROPERTY,
    "setDelayTimeLevel": "delay_level= of the constructor",
    "set_delay_time_level": "delay_level= of the constructor",
    "setDeliverTimeMs": "deliver_at_ms= of the constructor",
    "setDelayTimeMs": "delay_ms= of the constructor",
    "setDelayTimeSec": "delay_ms= of the constructor, in ms",
}
OF_RECEIPTS: Final = {
    "getMsgId": "message_id",
    "msg_id": "message_id",
    "getOffsetMsgId": "offset_message_id",
    "offset_msg_id": "offset_message_id",
    "getSendStatus": "status",
    "send_status": "status",
    "getQueueOffset": "queue_offset",
    "getMessageQueue": "message_queue",
    "getTransactionId": "message_id",
    "getRecallHandle": "recall_handle",
}
OF_CONTEXTS: Final = {
    "getMessageQueue": "message_queue",
    "setAutoCommit": "auto_commit, which is assigned",
    "isAutoCommit": "auto_commit",
    "setSuspendCurrentQueueTimeMillis": "suspend_ms, which is assigned",
    "setAckIndex": "ack_index, which is assigned, of a concurrent listener's context",
    "setDelayLevelWhenNextConsume": (
        "delay_level, which is assigned, of a concurrent listener's context"
    ),
}
