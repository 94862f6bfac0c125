"""Doctor: what is wrong with a cluster or a group, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum

from ordermq.admin.check import CheckKind, CheckStep, ConnectionCheck
from ordermq.admin.dead_letters import DeadLetterTopics
from ordermq.admin.groups import Groups, GroupState
from ordermq.admin.topics import Topics
from ordermq.client.admin_api import AdminApi
from ordermq.client.session import ClientSession
from ordermq.errors import BrokerError, OrderMQError, StateError
from ordermq.model.message import Message, MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.producer.producer import Producer
from ordermq.remoting.codes import ResponseCode
from ordermq.value import Value

TEST_TOPIC = "ordermq_doctor"
_OLDEST, _TIMERS, _RESETS = (4, 9), (5, 0), (5, 2)
_FAR_MS = 1_000  # clocks that are further apart make times of messages and timers surprising
_SLOW_MS = 1_000  # a send alone in its queue takes some ms
_BUSY_MS = 200  # RocketMQ refuses requests that waited for so long (waitTimeMillsInSendQueue)
_FULL = 0.85  # of the disk: RocketMQ begins to delete here, and refuses sends from 0.90 on


class Verdict(StrEnum):
    """Weight of a finding."""

    OK = "ok"
    WARNING = "warning"  # it works, and may surprise
    FAILED = "failed"


class Finding(Value):
    """One thing that was looked at.

    Args:
        name: what it is.
        detail: what was found.
        remedy: what to do about it; "" where all is well.
        is_unreachable: nobody answered.
    """

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    is_unreachable: bool = False


class Doctor:
    """Looks at servers, a topic and a group, and sends a message through each broker.

    On a caller's thread.

    Args: open_producer: makes a producer for the same cluster.
    """

    def __init__(
        self,
        client: ClientSession,
        topics: Topics,
        groups: Groups,
        letters: DeadLetterTopics,
        check: ConnectionCheck,
        open_producer: Callable[[], Producer],
    ) -> None:
        self._client = client
        self._topics = topics
        self._groups = groups
        self._letters = letters
        self._check = check
        self._api = AdminApi.of(client)
        self._open_producer = open_producer

    def run(self, topic: str | None, group: str | None, sends: bool) -> list[Finding]:
        """Return the findings, as `Admin.doctor` describes."""
        steps = self._client.call(self._check.run(topic, None))
        findings = [_of_step(step) for step in steps]
        # One that refuses an account has answered, and may do what is asked next.
        brokers = [step for step in steps if step.name.startswith("broker ")]
        if not any(step.is_ok or step.kind is CheckKind.ANSWER for step in brokers):
            return findings
        masters = self._client.call(self._client.name_servers.masters())
        for name, address in sorted(masters.items()):
            findings += self._broker(name, address)
        findings += _of_versions(findings)
        if group is not None:
            findings += self._group(group, masters)
        if sends:
            findings += self._messages()
        return findings

    # Brokers.

    def _broker(self, name: str, address: str) -> Iterator[Finding]:
        subject = f"broker {name}"
        try:
            info = self._client.call(self._api.runtime_info(address))
            settings = self._settings_of_broker(address)
        except OrderMQError as error:
            yield _of_error(f"{subject}, its state", error)
            return
        yield _version(subject, info.get("brokerVersionDesc", ""))
        if settings.get("brokerPermission", "6") != "6":
            yield Finding(
                f"{subject}, permission", Verdict.FAILED,
                f"brokerPermission={settings['brokerPermission']}: no messages go in, or out",
                "mqadmin updateBrokerConfig -k brokerPermission -v 6",
            )  # fmt: skip
        if settings.get("autoCreateTopicEnable") == "true":
            yield Finding(
                f"{subject}, topics", Verdict.WARNING,
                "autoCreateTopicEnable=true: a misspelt topic is created, with a number of queues "
                "that nobody chose",
                "in production set it to false and run `ordermq topics create`",
            )  # fmt: skip
        used = max((_ratio(info[key]) for key in info if "DiskRatio" in key), default=0.0)
        if used >= _FULL:
            yield Finding(
                f"{subject}, disk", Verdict.FAILED, f"{used:.0%} of its disk is used",
                "free space, or lower fileReservedTime: sends are refused from 90 % on",
            )  # fmt: skip
        waited = int(_ratio(info.get("sendThreadPoolQueueHeadWaitTimeMills", "0")))
        if waited >= _BUSY_MS:
            yield Finding(
                f"{subject}, load", Verdict.WARNING, f"sends wait there for {waited} ms",
                "look at its disk and at sendMessageThreadPoolNums; producers retry meanwhile",
            )  # fmt: skip

    def _settings_of_broker(self, address: str) -> dict[str, str]:
        try:
            return _lines(self._client.call(self._api.broker_config(address)))
        except BrokerError as error:
            if error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return {}  # the embedded broker has none of RocketMQ's

    # A group.

    def _group(self, group: str, masters: dict[str, str]) -> Iterator[Finding]:
        subject = f"group {group}"
        for name, address in sorted(masters.items()):
            yield self._settings_of_group(f"{subject} at broker {name}", group, address)
        try:
            state = self._client.call(self._groups.look(group, (), ask_members=True))
        except OrderMQError as error:
            yield _of_error(subject, error)
            return
        yield from _of_group(subject, state)
        yield self._dead_letters(f"{subject}, dead letters", group)

    def _dead_letters(self, subject: str, group: str) -> Finding:
        try:
            letters = self._client.call(self._letters.look(group))
        except OrderMQError as error:
            return _of_error(subject, error)
        if not letters.waiting:
            return Finding(subject, Verdict.OK, "none waits")
        return Finding(
            subject, Verdict.WARNING,
            f"{letters.waiting:,} waiting, of {letters.messages:,} that were given up",
            f"`ordermq dlq show {group} --waiting` says why; with the cause mended, "
            f"`ordermq dlq redrive {group}` sends them again, `ordermq dlq skip` leaves one out",
        )  # fmt: skip

    def _settings_of_group(self, subject: str, group: str, address: str) -> Finding:
        try:
            settings = self._client.call(self._api.group_settings(address, group))
        except BrokerError as error:
            if error.response_code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return Finding(
                    subject, Verdict.WARNING, "the broker does not know it yet",
                    "its first member has it created, unless autoCreateSubscriptionGroup=false: "
                    f"run `ordermq groups create {group}` then",
                )  # fmt: skip
            if error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return Finding(subject, Verdict.OK, "brokers before 5.0 do not tell its settings")
            return _of_error(subject, error)
        except OrderMQError as error:
            return _of_error(subject, error)
        if settings.get("consumeEnable") is False:
            return Finding(
                subject, Verdict.FAILED, "consumeEnable=false: the broker gives it no messages",
                f"mqadmin updateSubGroup -g {group} -s true",
            )  # fmt: skip
        orderly = "in order" if settings.get("consumeMessageOrderly") else "without order"
        return Finding(
            subject,
            Verdict.OK,
            f"retryMaxTimes={settings.get('retryMaxTimes')}; gRPC clients consume {orderly}",
        )

    # A message.

    def _messages(self) -> Iterator[Finding]:
        """Send a message to each broker, through a topic of our own, and read it."""
        try:
            is_made = self._create_topic()
        except OrderMQError as error:
            finding = _of_error("test message", error)
            yield Finding(
                finding.name, finding.verdict,
                f"topic {TEST_TOPIC} cannot be created: {finding.detail}",
                f"create it by hand (`ordermq topics create {TEST_TOPIC} --queues 1`), or leave "
                "the message out (--no-message)",
                finding.is_unreachable,
            )  # fmt: skip
            return
        try:
            with self._open_producer() as producer:
                for queue in producer.queues(TEST_TOPIC):
                    yield from self._message(producer, queue)
        except OrderMQError as error:
            yield _of_error("test message", error)
        finally:
            if is_made:
                self._client.call(self._topics.delete(TEST_TOPIC))

    def _create_topic(self) -> bool:
        """Create the topic; return False if it was there."""
        try:
            self._client.call(self._topics.create(TEST_TOPIC, 1, (), None, stores_batches=False))
        except StateError:
            return False
        return True

    def _message(self, producer: Producer, queue: MessageQueue) -> Iterator[Finding]:
        subject = f"message through {queue.broker_name}"
        clock = self._client.clock
        sent_ms, begun_ms = clock.wall_ms(), clock.now_ms()
        try:
            receipt = producer.send(Message(TEST_TOPIC, b"ordermq doctor"), queue=queue)
            took_ms = clock.now_ms() - begun_ms
            found = self._client.call(self._topics.read(queue, receipt.queue_offset, 1))
        except OrderMQError as error:
            yield _of_error(subject, error)
            return
        if [each.message_id for each in found] != [receipt.message_id]:
            yield Finding(
                subject, Verdict.FAILED,
                f"sent to offset {receipt.queue_offset}, and something else is read there",
                "look at the broker's log: it may have lost its store, or be another broker",
            )  # fmt: skip
            return
        is_slow = took_ms > _SLOW_MS
        yield Finding(
            subject,
            Verdict.WARNING if is_slow else Verdict.OK,
            f"sent in {took_ms} ms ({receipt.status.name}) and read",
            "look at the broker's disk and the network" if is_slow else "",
        )
        yield _of_clock(queue, found[0], sent_ms, took_ms)


def _lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _of_step(step: CheckStep) -> Finding:
    if step.is_ok:
        return Finding(step.name, Verdict.OK, step.detail)
    return Finding(
        step.name,
        Verdict.FAILED,
        step.detail,
        _remedy(step.name, step.detail),
        is_unreachable=step.kind is CheckKind.CONNECTION,
    )


def _of_error(name: str, error: OrderMQError) -> Finding:
    is_answer = isinstance(error, (BrokerError, StateError))
    detail = str(error)
    return Finding(
        name, Verdict.FAILED, detail, _remedy(name, detail), is_unreachable=not is_answer
    )


def _remedy(name: str, detail: str) -> str:
    """Return what to do about a step that failed."""
    told = detail.lower()
    if any(word in told for word in ("permission", "denied", "signature", "access", "account")):
        return (
            "give --access-key and --secret-key of an account that may do this (docs/security.md)"
        )
    if name.startswith("topic "):
        return f"create it: ordermq {name.replace('topic ', 'topics create ')}; or mend its name"
    if "tls" in told or "certificate" in told:
        return "--tls on or off as the server has it, and --tls-ca-file (docs/security.md)"
    if name.startswith("broker "):
        return (
            "start it; if it runs, the address that it registered cannot be reached from here: "
            "brokerIP1 in its settings, or --address-map (docs/deploy.md)"
        )
    if name == "brokers":
        return "start a broker, with namesrvAddr set to these name servers"
    return "check host and port, the server's log and firewalls"


def _version(subject: str, text: str) -> Finding:
    # V5_3_3; also V5_3_3_SNAPSHOT.
    numbers = tuple(map(int, re.findall(r"\d+", text)[:3]))
    shown = ".".join(map(str, numbers)) or repr(text)
    name = f"{subject}, version"
    if numbers and numbers < _OLDEST:
        return Finding(
            name,
            Verdict.FAILED,
            f"RocketMQ {shown}",
            "4.9 is the oldest that is supported: upgrade",
        )
    lacks = [
        text
        for since, text in (
            (_TIMERS, "no timed messages"),
            (_RESETS, "live members are reset by time only"),
        )
        if numbers < since
    ]
    return Finding(name, Verdict.OK, "; ".join([f"RocketMQ {shown}", *lacks]))


def _of_versions(findings: list[Finding]) -> list[Finding]:
    told = {each.detail for each in findings if each.name.endswith(", version")}
    if len(told) < 2:
        return []
    return [
        Finding(
            "versions of the brokers", Verdict.WARNING, ", ".join(sorted(told)),
            "upgrade all of them: what the oldest lacks, a topic over all of them lacks",
        )
    ]  # fmt: skip


def _of_clock(queue: MessageQueue, message: MessageView, sent_ms: int, took_ms: int) -> Finding:
    name = f"clock of {queue.broker_name}"
    # It stored the message at some time of the send; only what is outside of that is a difference.
    ahead = message.store_timestamp_ms - sent_ms
    off = ahead - took_ms if ahead > took_ms else min(ahead, 0)
    if abs(off) <= _FAR_MS:
        return Finding(name, Verdict.OK, "within a second of this machine's")
    return Finding(
        name, Verdict.WARNING,
        f"{abs(off) / 1000:.1f} s {'ahead of' if off > 0 else 'behind'} this machine's",
        "run NTP on both: times of messages, timers and resets by time are off by as much; order "
        "and leases are not",
    )  # fmt: skip


def _of_group(subject: str, state: GroupState) -> Iterator[Finding]:
    for topic in state.absent:
        yield Finding(
            f"{subject}, topic {topic}", Verdict.FAILED, "members wait for it, no broker has it",
            f"ordermq topics create {topic}; or mend the name that they subscribe to",
        )  # fmt: skip
    for member, reason in state.silent.items():
        yield Finding(
            f"{subject}, member {member}", Verdict.FAILED, f"does not answer: {reason}",
            "look at its process: it may be frozen, or of a client that does not answer",
        )  # fmt: skip
    told = {member: tuple(sorted(each.items())) for member, each in state.subscriptions.items()}
    if len(set(told.values())) > 1:
        yield Finding(
            f"{subject}, subscriptions", Verdict.FAILED,
            "its members subscribe differently: "
            + "; ".join(f"{member}: {dict(each)}" for member, each in sorted(told.items())),
            "subscribe alike in all members: what a broker filters depends on who asked last",
        )  # fmt: skip
    queues = len(state.progress)
    if len(state.members) > queues > 0 and not state.pops:
        yield Finding(
            f"{subject}, members", Verdict.WARNING,
            f"{len(state.members)} members share {queues} queues: some have none",
            "fewer members, or order_by_key=True for more work at once in each",
        )  # fmt: skip
    if not state.members:
        yield Finding(
            f"{subject}, members", Verdict.WARNING, f"none is live; {state.lag:,} messages behind",
            "start its program; a killed member's queues wait for the end of its locks",
        )  # fmt: skip
        return
    yield Finding(
        f"{subject}, members",
        Verdict.OK,
        f"{len(state.members)} live, {queues} queues, {state.lag:,} messages behind",
    )
