"""Writes docs/settings.md: every setting with its default, unit, range and Java's name.

Also the tables of other clients' names in the pages for their readers.

.venv/bin/python ci/settings_page.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ordermq import config
from ordermq.config.checks import ranges_of
from ordermq.config.foreign_names import FOREIGN_NAMES

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end -->"
NAMES_BEGIN: Final = "<!-- names -->\n"
# The pages with a table of other clients' names, and the clients of each.
NAME_PAGES: Final = (
    (ROOT / "docs" / "from-kafka.md", ("Kafka's clients",)),
    (
        ROOT / "docs" / "from-java.md",
        ("RocketMQ's Java client", "RocketMQ's broker", "rocketmq-client-python"),
    ),
    (ROOT / "docs" / "celery.md", ("Celery", "pika")),
)

# Each group of settings, and the classes that take it.
GROUPS: Final = (
    (config.ClientConfig, "every client"),
    (config.ConsumerConfig, "PushConsumer"),
    (config.ConsumeConfig, "PushConsumer"),
    (config.PullConfig, "PushConsumer"),
    (config.LeaseConfig, "PushConsumer"),
    (config.PopConfig, "PushConsumer, LitePullConsumer"),
    (config.RebalanceConfig, "PushConsumer, LitePullConsumer"),
    (config.LitePullConsumerConfig, "LitePullConsumer"),
    (config.LitePullConfig, "LitePullConsumer"),
    (config.DirectPullConfig, "PullConsumer"),
    (config.SendConfig, "Producer"),
    (config.TransactionConfig, "Producer"),
    (config.TraceConfig, "Producer, PushConsumer"),
    (config.RemotingConfig, "every client"),
    (config.BrokerConfig, "EmbeddedBroker"),
)
UNITS: Final = {"_ms": "ms", "_bytes": "bytes", "_mib": "MiB"}

# The name of the same setting in RocketMQ's Java client, or in its broker for BrokerConfig.
# A setting that is not listed has no counterpart there.
JAVA: Final = {
    "ConsumerConfig.message_model": "messageModel",
    "ConsumerConfig.local_offset_store_dir": "-Drocketmq.client.localOffsetStoreDir",
    "ConsumeConfig.consume_thread_count": "consumeThreadMin, consumeThreadMax",
    "ConsumeConfig.consume_message_batch_max_size": "consumeMessageBatchMaxSize",
    "ConsumeConfig.auto_commit": "ConsumeOrderlyContext.setAutoCommit",
    "ConsumeConfig.commit_interval_ms": "persistConsumerOffsetInterval",
    "ConsumeConfig.max_time_consume_continuously_ms": (
        "-Drocketmq.client.maxTimeConsumeContinuously"
    ),
    "ConsumeConfig.suspend_current_queue_time_ms": "suspendCurrentQueueTimeMillis",
    "ConsumeConfig.max_attempts": "maxReconsumeTimes + 1 (orderly)",
    "ConsumeConfig.max_reconsume_times": "maxReconsumeTimes",
    "ConsumeConfig.consume_timeout_ms": "consumeTimeout (minutes)",
    "PullConfig.pull_batch_size": "pullBatchSize",
    "PullConfig.pull_batch_bytes": "pullBatchSizeInBytes",
    "PullConfig.pull_threshold_for_queue": "pullThresholdForQueue",
    "PullConfig.pull_threshold_size_for_queue_mib": "pullThresholdSizeForQueue",
    "PullConfig.pull_threshold_for_topic": "pullThresholdForTopic",
    "PullConfig.pull_threshold_size_for_topic_mib": "pullThresholdSizeForTopic",
    "PullConfig.pull_interval_ms": "pullInterval",
    "PullConfig.consume_concurrently_max_span": "consumeConcurrentlyMaxSpan",
    "PullConfig.pull_delay_on_error_ms": "pullTimeDelayMillsWhenException",
    "PullConfig.broker_suspend_ms": "BROKER_SUSPEND_MAX_TIME_MILLIS",
    "PullConfig.pull_timeout_ms": "CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND",
    "LeaseConfig.lock_max_live_ms": "-Drocketmq.client.rebalance.lockMaxLiveTime",
    "LeaseConfig.lock_interval_ms": "-Drocketmq.client.rebalance.lockInterval",
    "RebalanceConfig.consume_from_where": "consumeFromWhere",
    "RebalanceConfig.consume_timestamp_ms": "consumeTimestamp",
    "RebalanceConfig.allocation": "allocateMessageQueueStrategy",
    "RebalanceConfig.rebalance_interval_ms": "-Drocketmq.client.rebalance.waitInterval",
    "RebalanceConfig.rebalance_min_interval_ms": "-Drocketmq.client.rebalance.minInterval",
    "LitePullConsumerConfig.message_model": "messageModel",
    "LitePullConsumerConfig.local_offset_store_dir": "-Drocketmq.client.localOffsetStoreDir",
    "LitePullConfig.auto_commit": "autoCommit",
    "LitePullConfig.auto_commit_interval_ms": "autoCommitIntervalMillis",
    "LitePullConfig.poll_timeout_ms": "pollTimeoutMillis",
    "LitePullConfig.pull_batch_size": "pullBatchSize",
    "LitePullConfig.pull_threshold_for_all": "pullThresholdForAll",
    "LitePullConfig.pull_threshold_for_queue": "pullThresholdForQueue",
    "LitePullConfig.pull_threshold_size_for_queue_mib": "pullThresholdSizeForQueue",
    "LitePullConfig.pull_delay_on_error_ms": "pullTimeDelayMillsWhenException",
    "LitePullConfig.broker_suspend_ms": "brokerSuspendMaxTimeMillis",
    "LitePullConfig.pull_timeout_ms": "consumerTimeoutMillisWhenSuspend",
    "DirectPullConfig.pull_timeout_ms": "consumerPullTimeoutMillis",
    "DirectPullConfig.broker_suspend_ms": "brokerSuspendMaxTimeMillis",
    "DirectPullConfig.suspended_pull_timeout_ms": "consumerTimeoutMillisWhenSuspend",
    "DirectPullConfig.max_reconsume_times": "maxReconsumeTimes",
    "SendConfig.send_timeout_ms": "sendMsgTimeout",
    "SendConfig.retry_times": "retryTimesWhenSendFailed",
    "SendConfig.max_message_bytes": "maxMessageSize",
    "SendConfig.default_topic_queue_nums": "defaultTopicQueueNums",
    "SendConfig.retry_another_broker": "retryAnotherBrokerWhenNotStoreOK",
    "SendConfig.send_latency_fault": "sendLatencyFaultEnable",
    "SendConfig.compress_msg_body_over_howmuch": "compressMsgBodyOverHowmuch",
    "SendConfig.compress_type": "-Drocketmq.message.compressType",
    "SendConfig.compress_level": "-Drocketmq.message.compressLevel",
    "TransactionConfig.check_thread_count": "checkThreadPoolMinSize, checkThreadPoolMaxSize",
    "TransactionConfig.check_request_hold_max": "checkRequestHoldMax",
    "TraceConfig.enable_msg_trace": "enableTrace (4.9: enableMsgTrace)",
    "TraceConfig.customized_trace_topic": "traceTopic (4.9: customizedTraceTopic)",
    "RemotingConfig.connect_timeout_ms": "connectTimeoutMillis",
    "RemotingConfig.request_timeout_ms": "mqClientApiTimeout",
    "RemotingConfig.heartbeat_interval_ms": "heartbeatBrokerInterval",
    "RemotingConfig.route_interval_ms": "pollNameServerInterval",
    "RemotingConfig.access_key": "SessionCredentials.accessKey",
    "RemotingConfig.secret_key": "SessionCredentials.secretKey",
    "RemotingConfig.security_token": "SessionCredentials.securityToken",
    "RemotingConfig.namespace": "namespace",
    "RemotingConfig.namespace_v2": "namespaceV2",
    "RemotingConfig.unit_name": "unitName",
    "RemotingConfig.unit_mode": "unitMode",
    "RemotingConfig.serialize_type": "-Drocketmq.serialize.type",
    "RemotingConfig.client_ip": "clientIP",
    "RemotingConfig.max_frame_bytes": "-Dcom.rocketmq.remoting.frameMaxLength",
    "RemotingConfig.tls": "useTLS",
    "RemotingConfig.tls_ca_file": "tls.client.trustCertPath",
    "RemotingConfig.tls_certificate": "tls.client.certPath",
    "RemotingConfig.tls_key": "tls.client.keyPath",
    "BrokerConfig.broker_name": "brokerName",
    "BrokerConfig.cluster_name": "brokerClusterName",
    "BrokerConfig.lock_max_live_ms": "-Drocketmq.broker.rebalance.lockMaxLiveTime",
    "BrokerConfig.auto_create_topics": "autoCreateTopicEnable",
    "BrokerConfig.default_queue_count": "defaultTopicQueueNums",
    "BrokerConfig.client_expiry_ms": "channelExpiredTimeout",
    "BrokerConfig.max_message_bytes": "maxMessageSize",
    "BrokerConfig.retry_max_times": "retryMaxTimes (of the group)",
    "BrokerConfig.retention_ms": "fileReservedTime (hours)",
    "BrokerConfig.timer_max_delay_ms": "timerMaxDelaySec",
    "BrokerConfig.transaction_timeout_ms": "transactionTimeOut",
    "BrokerConfig.transaction_check_interval_ms": "transactionCheckInterval",
    "BrokerConfig.transaction_check_max": "transactionCheckMax",
    "BrokerConfig.idle_close_ms": "serverChannelMaxIdleTimeSeconds",
    "BrokerConfig.max_frame_bytes": "-Dcom.rocketmq.remoting.frameMaxLength",
    "BrokerConfig.tls_certificate": "tls.server.certPath",
    "BrokerConfig.tls_key": "tls.server.keyPath",
    "BrokerConfig.tls_client_ca_file": "tls.server.trustCertPath",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the page."""

    name: str
    default: str
    unit: str
    allowed: str
    java: str
    meaning: str


def settings_of(group: type) -> list[Setting]:
    """Return a row per setting of a dataclass; settings that are groups themselves are left out."""
    # Those that a base declares are rows of that, if it has a table of its own.
    known = [kind for kind, _ in GROUPS if kind is not group]
    declared = [kind for kind in group.__mro__ if is_dataclass(kind) and kind not in known]
    found: dict[str, Setting] = {}
    for kind in declared:
        found = {one.name: one for one in declared_in(kind, group)} | found
    return [found[one.name] for one in fields(group) if one.name in found]


def declared_in(kind: type, group: type) -> Iterator[Setting]:
    """Yield a row for each setting of a group that this class of it declares."""
    lines = inspect.getsource(kind).splitlines()
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    comments = comments_of(lines)
    allowed = allowed_of(tree, group, kind)
    at = {
        node.target.id: node
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for one in fields(group):
        if one.name not in at or is_group(one):
            continue
        yield Setting(
            one.name,
            default_of(one),
            next((unit for end, unit in UNITS.items() if one.name.endswith(end)), ""),
            allowed.get(one.name, "true, false" if one.type == "bool" else ""),
            JAVA.get(f"{group.__name__}.{one.name}", ""),
            meaning_of(at[one.name], comments, lines),
        )


def is_group(one: Field[Any]) -> bool:
    return isinstance(one.default_factory, type) and hasattr(
        one.default_factory, "__dataclass_fields__"
    )


def default_of(one: Field[Any]) -> str:
    """Return the default as a user would write it."""
    value = one.default
    if value is MISSING:
        value = one.default_factory() if one.default_factory is not MISSING else ""
    if isinstance(value, StrEnum):
        value = value.value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    return repr(value) if value else ""


def comments_of(lines: list[str]) -> dict[int, str]:
    """Return each comment by its line."""
    text = io.StringIO("\n".join(lines) + "\n")
    return {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(text.readline)
        if token.type == tokenize.COMMENT
    }


def meaning_of(node: ast.AnnAssign, comments: dict[int, str], lines: list[str]) -> str:
    """Return the comment behind a field, or the block of comments right above it."""
    if node.lineno in comments:
        return comments[node.lineno]
    above: list[str] = []
    line = node.lineno - 1
    while line in comments and lines[line - 1].strip().startswith("#"):
        above.insert(0, comments[line])
        line -= 1
    return " ".join(above)


def calls_of(tree: ast.ClassDef, name: str) -> Iterator[ast.Call]:
    """Yield every call of a check in the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).lstrip("_") == name:
            yield node


def keywords_of(tree: ast.ClassDef, name: str) -> Iterator[ast.keyword]:
    """Yield the keywords of every call of a check in the class."""
    for call in calls_of(tree, name):
        yield from (keyword for keyword in call.keywords if keyword.arg)


def allowed_of(tree: ast.ClassDef, group: type, kind: type) -> dict[str, str]:
    """Return what is allowed for each setting that is held to something."""
    ranges = {name: f"{low:_}..{high:_}" for name, (low, high) in ranges_of(group).items()}
    moments = dict.fromkeys(moments_of(tree), f"0..{(1 << 63) - 1:_}, or an age")
    return {**choices_of(tree, kind), **ranges, **moments}


def moments_of(tree: ast.ClassDef) -> list[str]:
    """Return the fields that `require_moment` takes for times."""
    return [ast.literal_eval(call.args[1]) for call in calls_of(tree, "require_moment")]


def choices_of(tree: ast.ClassDef, group: type) -> dict[str, str]:
    """Return the values that `require_choice` allows."""
    names = vars(importlib.import_module(group.__module__))
    return {
        str(keyword.arg): ", ".join(f"`{one.value}`" for one in names[ast.unparse(keyword.value)])
        for keyword in keywords_of(tree, "require_choice")
    }


def table(group: type) -> str:
    """Return a group's settings as a Markdown table."""
    rows = [
        "| setting | default | unit | range | Java | meaning |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{one.name}` | {code(one.default)} | {one.unit} | {one.allowed} | {code(one.java)} "
        f"| {one.meaning.replace('|', chr(92) + '|')} |"
        for one in settings_of(group)
    ]
    return "\n".join(rows)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def filled(page: str) -> str:
    """Return the page with its tables as the code has them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    parts = []
    for group, taker in GROUPS:
        first = str(group.__doc__).split("\n\n")[0]
        duty = " ".join(re.sub(r"\s*\(docs/[^)]*\)", "", first).split()).rstrip(".")
        parts.append(f"## {group.__name__}\n\nFor: {taker}. {duty}.\n\n{table(group)}\n")
    return f"{before}{begin}\n" + "\n".join(parts) + f"\n{end}{after}"


def filled_with_names(page: str, clients: tuple[str, ...]) -> str:
    """Return a page for readers of other clients with its table of their names."""
    before, begin, rest = page.partition(NAMES_BEGIN)
    _, end, after = rest.partition(END)
    head = f"\n| {' or '.join(clients)} | here | remark |\n|---|---|---|\n"
    rows = "".join(
        f"| `{name}` | {', '.join(map(code, each.instead))} | {each.remark} |\n"
        for name, each in FOREIGN_NAMES.items()
        if any(client in each.client for client in clients)
    )
    return f"{before}{begin}{head}{rows}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    for each, clients in NAME_PAGES:
        each.write_text(filled_with_names(each.read_text(), clients))
