"""Codes of requests, responses, languages and flags
(docs/internals/protocol.md#commands, docs/internals/protocol.md#response-codes).
"""

from __future__ import annotations

from enum import IntEnum

# MQVersion.V5_3_3: recent enough that brokers answer with standard JSON routes and SQL filters.
PROTOCOL_VERSION = 479
# MQVersion.V5_0_0. An older broker would deliver a timed message at once.
VERSION_WITH_TIMERS = 413


class RequestCode(IntEnum):
    """Kind of a request; OMQ_ are extensions of the embedded broker."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # broker to client
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361  # since 5.0; clients of ordermq send 11, which 4.9 knows, too
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400  # a client since 5.3.2 that gets code 3 for it never consumes
    OMQ_QUERY_LOCKS = 28_101  # extension: live locks of these queues
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    BATCH_ACK_MESSAGE = 200_151


class ResponseCode(IntEnum):
    """Outcome of a request; 28001 and above are extensions, sent only to clients that use them."""

    SUCCESS = 0
    SYSTEM_ERROR = 1  # also "denied" with the plain ACL, and "no members" for request 38
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    FLOW_CONTROL = 215  # nothing was stored, like 2, 14 and 1500: safe to send again
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    # Extension: the commit's lock epoch is not the current one
    # (docs/internals/semantics.md#fencing).
    OMQ_FENCED = 28_001


# Remark of PULL_OFFSET_MOVED where an admin moved the group, as RocketMQ's GetMessageStatus has it.
OFFSET_RESET = "OFFSET_RESET"
# Remark of the embedded broker to a pull between the messages of a restored back-up and those that
# came since: nothing was removed there.
OFFSETS_LEFT_OUT = "OFFSETS_LEFT_OUT"


class LanguageCode(IntEnum):
    """Language of the sender; the JSON header carries the name, the binary one the number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class TransactionFlag(IntEnum):
    """Transaction bits of a message's sysFlag; also the state sent in END_TRANSACTION
    (docs/internals/protocol.md#sending).
    """

    NONE = 0x0  # in END_TRANSACTION: unknown
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class PullFlag(IntEnum):
    """Bits of a pull request's sysFlag (docs/internals/protocol.md#pulling)."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE = 16
