"""A topic that is deleted and created again under live members: nothing of the new one is skipped
(docs/internals/semantics.md#a-topics-second-life)."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ordermq import Admin, LitePullConsumer, Message, Producer, PushConsumer
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.backup import back_up, restore
from ordermq.client.queue_life import QueueMark
from ordermq.config import BrokerConfig
from ordermq.consumer.fetch import life_watch
from ordermq.consumer.fetch.life_watch import LifeWatch, PulledMark
from ordermq.consumer.offsets.offset_committer import OffsetCommitter
from ordermq.errors import BrokerError, RequestTimeout, StateError
from ordermq.events import History
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.codes import ResponseCode
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import eventually
from tests.component.damaging_proxy import DamagingProxy

QUEUE = MessageQueue("orders", "b", 0)
KINDS = ["orderly", "by key", "concurrent", "broadcasting", "lite", "ordered polling"]


class Member:
    """A started member of group "g", and what it was given: texts as "old 3"."""

    def __init__(
        self,
        kind: str,
        servers: str,
        folder: Path,
        before: Callable[[str], object] = lambda body: None,
        **settings: Any,
    ) -> None:
        self.got: list[str] = []
        self._before = before
        settings = {"name_servers": servers, "consume_from_where": "first_offset"} | settings
        if kind in ("lite", "ordered polling"):
            self.consumer: Any = LitePullConsumer(
                "g", ordered=kind == "ordered polling", auto_commit_interval_ms=50, **settings
            )
            self.consumer.subscribe("orders")
            self.consumer.start()
            threading.Thread(target=self._poll, daemon=True).start()
            return
        if kind == "by key":
            settings["order_by_key"] = True
        elif kind == "broadcasting":
            settings |= {"message_model": "broadcasting", "local_offset_store_dir": str(folder)}
        self.consumer = PushConsumer("g", commit_interval_ms=50, **settings)
        self.consumer.subscribe("orders")
        (self.consumer.concurrently if kind == "concurrent" else self.consumer.orderly)(self._take)
        self.consumer.start()

    def _take(self, messages: Any, context: Any = None) -> None:
        for message in messages:
            body = bytes(message.body).decode()
            self._before(body)
            self.got.append(body)

    def _poll(self) -> None:
        while True:
            try:
                batch = self.consumer.poll(50)
            except Exception:  # noqa: BLE001 - closed
                return
            self._take(batch)

    def wait_for(self, name: str, count: int) -> None:
        want = {f"{name} {number}" for number in range(count)}
        eventually(lambda: want <= set(self.got), f"all messages of {name}")

    def has_marked(self) -> bool:
        """Return whether the member knows the present life of the queue."""
        fetcher = self.consumer._member.parts.fetcher._by_queue[QUEUE]
        return fetcher.life.mark is not None

    def committed(self) -> int | None:
        return self.consumer._member.client.call(self.consumer._member.offsets.stored(QUEUE))

    def close(self) -> None:
        assert self.consumer.close(10.0)


def send(broker: EmbeddedBroker, name: str, count: int, *, tag: str = "a") -> None:
    with Producer("p", name_servers=broker.name_servers, default_topic_queue_nums=1) as producer:
        for number in range(count):
            body = f"{name} {number}".encode()
            producer.send(Message("orders", body, tags=tag), sharding_key="k")


def recreate(broker: EmbeddedBroker, count: int) -> None:
    with Admin(name_servers=broker.name_servers) as admin:
        admin.delete_topic("orders")
    send(broker, "new", count)


@pytest.mark.parametrize("count", [7, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_every_message_of_the_new_topic_is_delivered(
    kind: str, count: int, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It ends before the member's offset, or was filled beyond it."""
    send(broker, "old", 30)
    member = Member(kind, broker.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    recreate(broker, count)
    member.wait_for("new", count)
    eventually(lambda: member.committed() == count, "the new topic's offset")
    assert member.consumer.statistics["new_lives"] == 1
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent"])
def test_a_topic_that_was_recreated_between_two_pulls_is_found_by_its_messages(
    kind: str,
    has_engine: bool,
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No pull fails, and no route changes: the buffer is full, and the listener waits."""
    monkeypatch.setattr(life_watch, "QUIET_MS", 500)
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 100)
    goes_on, is_filled = threading.Event(), threading.Event()
    is_filled.set()
    look = LifeWatch.look

    async def look_when_filled(watch: LifeWatch) -> Any:
        while not is_filled.is_set():
            await asyncio.sleep(0.01)
        return await look(watch)

    monkeypatch.setattr(LifeWatch, "look", look_when_filled)
    send(broker, "old", 30)

    def wait(body: str) -> None:
        if body == "old 0":
            assert goes_on.wait(60)

    member = Member(
        kind,
        broker.name_servers,
        tmp_path,
        wait,
        pull_batch_size=10,
        pull_threshold_for_queue=5,
        consume_thread_count=1,
    )
    eventually(lambda: "orders" in [q.topic for q in member.consumer.assigned_queues()], "it")
    life = member.consumer._member.parts.fetcher._by_queue[QUEUE].life
    eventually(lambda: type(life.mark) is QueueMark and life._look_task is None, "it is known")
    is_filled.clear()
    recreate(broker, 60)
    is_filled.set()
    goes_on.set()
    member.wait_for("new", 60)
    eventually(lambda: member.committed() == 60, "the new topic's offset")
    told = [text for text in caplog.messages if "is not the one that was read" in text]
    assert len(told) == 1
    assert "Continuing from offset 0 of 0-60" in told[0]
    member.close()


def as_rocketmq_answers(command: Command) -> None:
    """It has nothing behind the offset; the embedded broker says that its topic is another one."""
    if command.code == ResponseCode.PULL_OFFSET_MOVED:
        command.code = ResponseCode.PULL_NOT_FOUND
        command.ext["nextBeginOffset"] = "30"


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent"])
def test_a_topic_recreated_with_as_many_messages_is_found_by_an_idle_member(
    kind: str, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pull is held meanwhile, no route changes, and nothing comes behind the offset."""
    monkeypatch.setattr(life_watch, "_IDLE_MS", 500)
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 100)
    send(broker, "old", 30)
    with DamagingProxy(broker.address, as_rocketmq_answers) as proxy:
        member = Member(kind, proxy.address, tmp_path, pull_interval_ms=1_500, broker_suspend_ms=1)
        member.wait_for("old", 30)
        eventually(member.has_marked, "the queue is known")
        recreate(broker, 30)
        member.wait_for("new", 30)
        member.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_is_recreated_before_the_first_look_is_found(
    kind: str, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker answers no look while its messages are read, and the topic is made anew."""
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 100)
    is_busy = True
    message_before = LifeWatch._message_before

    async def unanswered(watch: LifeWatch, offset: int) -> Any:
        if is_busy:
            raise RequestTimeout("a test's own")
        return await message_before(watch, offset)

    monkeypatch.setattr(LifeWatch, "_message_before", unanswered)
    send(broker, "old", 30)
    member = Member(kind, broker.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    recreate(broker, 60)
    is_busy = False
    member.wait_for("new", 60)
    assert member.consumer.statistics["new_lives"] == 1
    assert len(member.got) == 90
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "concurrent", "lite"])
def test_a_change_of_the_subscription_does_not_end_the_move_to_a_new_life(
    kind: str, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's pulls begin anew while the start of its new life is being stored."""
    begun, goes_on = asyncio.Event(), asyncio.Event()
    commit = OffsetCommitter.commit

    async def held(committer: OffsetCommitter, assigned: Any) -> bool:
        if assigned.queue == QUEUE and assigned.begins_life:
            begun.set()
            await goes_on.wait()
        return await commit(committer, assigned)

    monkeypatch.setattr(OffsetCommitter, "commit", held)
    send(broker, "old", 30)
    member = Member(kind, broker.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    recreate(broker, 7)
    runtime = member.consumer._member.client.runtime

    async def reached() -> None:
        await begun.wait()

    runtime.call(reached(), 20.0)
    member.consumer.subscribe("orders", "a || b")
    member.consumer.subscribe("orders")
    runtime.post(goes_on.set)
    member.wait_for("new", 7)
    # And once more: a move that had only begun kept the next ones from beginning.
    send(broker, "new", 20)
    recreate(broker, 9)
    eventually(lambda: member.committed() == 9, "the third topic's offset")
    assert member.got[-9:] == [f"new {number}" for number in range(9)]
    member.close()


def test_a_queue_is_moved_to_its_new_life_also_where_its_start_cannot_be_stored(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's store may raise any error of ordermq, as of a client of its own that is closed."""
    commit = OffsetCommitter.commit

    async def fails(committer: OffsetCommitter, assigned: Any) -> bool:
        if assigned.begins_life:
            raise StateError("a test's own")
        return await commit(committer, assigned)

    monkeypatch.setattr(OffsetCommitter, "commit", fails)
    send(broker, "old", 30)
    member = Member("orderly", broker.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    recreate(broker, 7)
    member.wait_for("new", 7)
    member.close()


def test_a_look_at_which_a_broker_fails_is_not_the_last_one(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 100)
    failures: list[int] = []
    message_before = LifeWatch._message_before

    async def failing(watch: LifeWatch, offset: int) -> Any:
        if watch._assigned.queue == QUEUE and not failures:
            failures.append(offset)
            code = ResponseCode.SYSTEM_ERROR
            raise BrokerError("java.lang.NullPointerException", response_code=code)
        return await message_before(watch, offset)

    monkeypatch.setattr(LifeWatch, "_message_before", failing)
    monkeypatch.setattr(life_watch, "_IDLE_MS", 500)
    send(broker, "old", 30)
    with DamagingProxy(broker.address, as_rocketmq_answers) as proxy:
        member = Member(
            "orderly", proxy.address, tmp_path, pull_interval_ms=1_500, broker_suspend_ms=1
        )
        member.wait_for("old", 30)
        eventually(lambda: failures, "a look")
        recreate(broker, 30)
        member.wait_for("new", 30)
        member.close()


@pytest.mark.parametrize("part", ["stored_ms", "physical_offset", "born_ms"])
def test_a_pulled_message_of_which_a_part_was_damaged_begins_no_life(
    part: str, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksum covers its times and its place in the log."""
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 1)

    def damaged(*read: int) -> PulledMark:
        mark = PulledMark(*read)
        return replace(mark, **{part: getattr(mark, part) ^ 1 << 40})

    monkeypatch.setattr(life_watch, "PulledMark", damaged)
    send(broker, "old", 30)
    member = Member("orderly", broker.name_servers, tmp_path)
    member.wait_for("old", 30)
    life = member.consumer._member.parts.fetcher._by_queue[QUEUE].life
    eventually(lambda: type(life.mark) is QueueMark, "a look has made a mark")
    send(broker, "more", 5)
    member.wait_for("more", 5)
    assert len(member.got) == 35
    assert member.consumer.statistics["new_lives"] == 0
    member.close()


class CutLog:
    """A broker whose log is replaced by an older copy of it, into which others have written."""

    def __init__(self, folder: Path, config: BrokerConfig) -> None:
        self.file = folder / "cut.db"
        self._copy = folder / "copy.db"
        self._config = config
        self.broker = EmbeddedBroker(self.file, config=config).start()
        self.name_servers, self._port = self.broker.name_servers, self.broker.port

    def again(self) -> None:
        self.broker = EmbeddedBroker(self.file, port=self._port, config=self._config).start()

    def keep_copy(self) -> None:
        self.broker.close()
        shutil.copy(self.file, self._copy)
        self.again()

    def put_copy_back(self, name: str, count: int) -> None:
        """Start the copy with so many other messages: members find no broker before those."""
        self.broker.close()
        with EmbeddedBroker(self._copy, config=self._config) as elsewhere:
            send(elsewhere, name, count)
        shutil.copy(self._copy, self.file)
        self.again()


@pytest.fixture
def cut_log(tmp_path: Path, broker_config: BrokerConfig) -> Iterator[CutLog]:
    log = CutLog(tmp_path, broker_config)
    yield log
    log.broker.close()


@pytest.mark.parametrize(
    ("kind", "count", "between_pulls"),
    [
        *((kind, 60, False) for kind in KINDS),
        *((kind, 10, False) for kind in ("orderly", "broadcasting", "lite")),
        *((kind, 60, True) for kind in ("orderly", "by key", "concurrent", "broadcasting")),
    ],
)
def test_what_took_the_place_of_lost_messages_is_delivered(
    kind: str,
    count: int,
    between_pulls: bool,
    cut_log: CutLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark lies in the part that both logs have, and says that the queue is the same. Between
    two pulls there is none that could fail."""
    monkeypatch.setattr(life_watch, "QUIET_MS", 600_000)
    monkeypatch.setattr(life_watch, "_RENEW_MS", 600_000)
    send(cut_log.broker, "old", 30)
    pulls = {"pull_interval_ms": 1_500, "broker_suspend_ms": 1} if between_pulls else {}
    member = Member(kind, cut_log.name_servers, tmp_path, pull_delay_on_error_ms=200, **pulls)
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    eventually(lambda: member.committed() == 30, "it is stored")
    cut_log.keep_copy()
    send(cut_log.broker, "lost", 20)
    member.wait_for("lost", 20)
    eventually(lambda: member.committed() == 50, "it is stored")
    cut_log.put_copy_back("new", count)
    member.wait_for("new", count)
    eventually(lambda: member.committed() == 30 + count, "the new messages' offset")
    assert len(member.got) == len(set(member.got)) == 50 + count
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent", "lite"])
def test_what_took_the_place_of_messages_that_a_filter_had_passed_over_is_delivered(
    kind: str, cut_log: CutLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member has read none of those that were lost, and so knows none of them."""
    monkeypatch.setattr(life_watch, "QUIET_MS", 600_000)
    monkeypatch.setattr(life_watch, "_RENEW_MS", 600_000)
    send(cut_log.broker, "old", 30)
    member = Member(kind, cut_log.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.consumer.subscribe("orders", "a")
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    cut_log.keep_copy()
    send(cut_log.broker, "lost", 20, tag="b")
    eventually(lambda: member.committed() == 50, "they are passed over")
    cut_log.put_copy_back("new", 60)
    member.wait_for("new", 60)
    eventually(lambda: member.committed() == 90, "the new messages' offset")
    assert len(member.got) == len(set(member.got)) == 90
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "concurrent"])
def test_what_was_not_passed_over_by_the_present_filter_begins_no_life(
    kind: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A seek passes over wanted messages, and another expression wants others than before."""
    send(broker, "old", 30)
    # Between two pulls the seek is before them.
    pulls = {"pull_interval_ms": 1_000, "broker_suspend_ms": 1}
    member = Member(kind, broker.name_servers, tmp_path, **pulls)
    consumer, control = member.consumer, member.consumer._member.control
    consumer.subscribe("orders", "a")
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    send(broker, "skipped", 20)
    control.seek(QUEUE, 45).result(20)
    consumer._member.client.call(doubt(member))
    send(broker, "other", 20, tag="b")
    eventually(lambda: member.committed() == 70, "they are passed over")
    consumer._member.client.call(doubt(member))
    control.seek(QUEUE, 10).result(20)
    eventually(lambda: member.committed() == 70, "they are passed over again")
    consumer._member.client.call(doubt(member))
    send(broker, "more", 20, tag="b")
    eventually(lambda: member.committed() == 90, "they are passed over")
    consumer.subscribe("orders", "a || b")
    send(broker, "end", 1, tag="c")
    eventually(lambda: member.committed() == 91, "it is passed over")
    consumer._member.client.call(doubt(member))
    assert not [body for body in member.got if body.startswith(("other", "more"))]
    assert consumer.statistics["new_lives"] == 0
    member.close()


@pytest.mark.parametrize("kind", ["by key", "concurrent"])
def test_a_commit_beyond_the_end_of_a_cut_queue_leaves_the_rest_to_the_next_pull(
    kind: str, has_engine: bool, cut_log: CutLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is full, and no pull on its way that would be told, or fail with its broker."""
    monkeypatch.setattr(life_watch, "QUIET_MS", 600_000)
    monkeypatch.setattr(life_watch, "_RENEW_MS", 600_000)
    goes_on, is_cut, is_refused = threading.Event(), threading.Event(), threading.Event()
    send(cut_log.broker, "old", 30)
    member = Member(
        kind,
        cut_log.name_servers,
        tmp_path,
        lambda body: body == "lost 8" and goes_on.wait(60),
        pull_delay_on_error_ms=200,
        pull_threshold_for_queue=5,
        consume_thread_count=1,
    )
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    eventually(lambda: member.committed() == 30, "it is stored")
    is_new, ends_behind = OffsetCommitter._is_new, OffsetCommitter._ends_behind

    def is_new_once_cut(committer: OffsetCommitter, *given: Any) -> bool:
        return is_cut.is_set() and is_new(committer, *given)

    async def noted(committer: OffsetCommitter, *given: Any) -> tuple[int, int] | None:
        ends = await ends_behind(committer, *given)
        is_refused.set()
        return ends

    monkeypatch.setattr(OffsetCommitter, "_is_new", is_new_once_cut)
    monkeypatch.setattr(OffsetCommitter, "_ends_behind", noted)
    cut_log.keep_copy()
    with Producer("p", name_servers=cut_log.name_servers) as producer:
        lost = [Message("orders", f"lost {number}".encode(), tags="a") for number in range(20)]
        producer.send_batch(lost, sharding_key="k")
    assigned = member.consumer._member.parts.fetcher._by_queue[QUEUE].assigned
    eventually(lambda: assigned.done_offset == 38, "the next one runs")
    cut_log.put_copy_back("new", 2)
    is_cut.set()
    assert is_refused.wait(20)
    with Producer("p", name_servers=cut_log.name_servers) as producer:
        for number in range(2, 60):
            new = Message("orders", f"new {number}".encode(), tags="a")
            producer.send(new, sharding_key="k")
    goes_on.set()
    member.wait_for("new", 60)
    eventually(lambda: member.committed() == 90, "the new messages' offset")
    member.close()


def test_what_was_fetched_before_the_lost_part_is_consumed(
    cut_log: CutLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is of the last message that was fetched; consumed is none of them."""
    monkeypatch.setattr(life_watch, "QUIET_MS", 600_000)
    monkeypatch.setattr(life_watch, "_RENEW_MS", 600_000)
    goes_on = threading.Event()
    send(cut_log.broker, "old", 300)
    member = Member(
        "concurrent",
        cut_log.name_servers,
        tmp_path,
        lambda body: body.startswith("old") and goes_on.wait(30),
        consume_message_batch_max_size=1,
        pull_delay_on_error_ms=200,
    )
    fetcher = member.consumer._member.parts.fetcher._by_queue[QUEUE]
    eventually(lambda: fetcher.assigned.next_pull_offset == 300, "all are fetched")
    member.consumer._member.client.call(fetcher.life.look())
    assert fetcher.life.mark.offset == 299
    cut_log.keep_copy()
    send(cut_log.broker, "lost", 20)
    eventually(lambda: fetcher.assigned.next_pull_offset == 320, "what will be lost is fetched")
    cut_log.put_copy_back("new", 60)
    eventually(lambda: member.consumer.statistics["new_lives"] == 1, "it is found")
    goes_on.set()
    member.wait_for("new", 60)
    member.wait_for("old", 300)
    eventually(lambda: member.committed() == 360, "it is stored")
    member.close()


@pytest.mark.parametrize("kind", ["orderly", "concurrent"])
def test_a_queue_that_was_cut_short_has_moved_also_where_that_cannot_be_stored(
    kind: str, cut_log: CutLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cut_log.broker, "old", 30)
    member = Member(kind, cut_log.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    eventually(member.has_marked, "the queue is known")
    cut_log.keep_copy()
    send(cut_log.broker, "lost", 20)
    member.wait_for("lost", 20)
    write, has_moved = OffsetCommitter._write, threading.Event()

    async def fails(committer: OffsetCommitter, *given: Any, reset: bool = False) -> None:
        if reset:
            raise RequestTimeout("no answer")
        await write(committer, *given)

    monkeypatch.setattr(OffsetCommitter, "_write", fails)
    monkeypatch.setattr(LifeWatch, "moved", lambda _: has_moved.set())
    cut_log.put_copy_back("new", 10)
    assert has_moved.wait(10)
    member.wait_for("new", 10)
    eventually(lambda: member.committed() == 40, "the next commit stores it")
    member.close()


@pytest.mark.parametrize("kind", ["concurrent", "broadcasting", "lite"])
def test_the_gap_of_a_restored_back_up_is_no_loss(
    kind: str, cut_log: CutLog, tmp_path: Path
) -> None:
    send(cut_log.broker, "old", 30)
    member = Member(kind, cut_log.name_servers, tmp_path, pull_delay_on_error_ms=200)
    member.wait_for("old", 30)
    back_up(cut_log.file, tmp_path / "back-up.db", lambda done, pages: None)
    send(cut_log.broker, "lost", 20)
    member.wait_for("lost", 20)
    cut_log.broker.close()
    restore(tmp_path / "back-up.db", cut_log.file, lambda done, pages: None)
    cut_log.again()
    send(cut_log.broker, "new", 20)
    member.wait_for("new", 20)
    assert member.consumer.statistics["skipped"] == 0
    assert not [text for text in member.consumer.health().reasons if "expired" in text]
    member.close()


def member_in_its_last_call(broker: EmbeddedBroker, folder: Path) -> tuple[Member, threading.Event]:
    """Return a member that is given the last of three messages, and what ends that call."""
    goes_on = threading.Event()
    send(broker, "old", 3)

    def wait(body: str) -> None:
        if body == "old 2":
            assert goes_on.wait(30)

    history = folder / "history.jsonl"
    member = Member("orderly", broker.name_servers, folder, wait, history=history)
    eventually(lambda: member.got == ["old 0", "old 1"], "the last one runs")
    return member, goes_on


def assert_passes_audit(folder: Path) -> None:
    """Assert it of the member, which gave up what it had done of the topic before."""
    report = audit([folder / "history.jsonl"])
    assert report.ok, report.violations


def test_a_member_that_closes_does_not_store_what_it_did_of_the_topic_before(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    member, goes_on = member_in_its_last_call(broker, tmp_path)
    recreate(broker, 2)
    closing = threading.Thread(target=member.close)
    closing.start()
    goes_on.set()
    closing.join(20)
    assert not closing.is_alive()
    assert_passes_audit(tmp_path)
    again = Member("orderly", broker.name_servers, tmp_path)
    again.wait_for("new", 2)
    again.close()


@pytest.mark.parametrize("mode", ["pull", "pop"])
@pytest.mark.parametrize("is_away", [True, False])
def test_the_brokers_history_tells_an_audit_of_a_deleted_topic(
    tmp_path: Path, mode: str, is_away: bool
) -> None:
    """Also while no member is there to tell, and of messages that nobody has consumed."""
    paths = [tmp_path / f"{name}.jsonl" for name in ("broker", "first", "second")]
    with (
        History(paths[0], "broker") as history,
        EmbeddedBroker(history=history, config=BrokerConfig(broker_name="b")) as broker,
    ):
        member = Member(
            "orderly", broker.name_servers, tmp_path, history=paths[1], consume_mode=mode
        )
        send(broker, "old", 4)
        member.wait_for("old", 4)
        if is_away:
            member.close()
            send(broker, "unread", 4)
        elif mode == "pull":
            eventually(lambda: member.committed() == 4, "the offset is stored")
            eventually(member.has_marked, "the queue is known")
        recreate(broker, 3)
        if is_away:
            member = Member(
                "orderly", broker.name_servers, tmp_path, history=paths[2], consume_mode=mode
            )
        member.wait_for("new", 3)
        member.close()
    report = audit([path for path in paths if path.exists()])
    assert report.ok, report.violations


def test_a_member_of_a_topic_that_is_gone_closes_at_once(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    member, goes_on = member_in_its_last_call(broker, tmp_path)
    with Admin(name_servers=broker.name_servers) as admin:
        admin.delete_topic("orders")
    goes_on.set()
    member.close()
    assert_passes_audit(tmp_path)


def test_a_queue_that_lives_on_is_not_taken_for_a_new_one(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_watch, "QUIET_MS", 1)
    monkeypatch.setattr(life_watch, "_PAUSE_MS", 1)
    member = Member("orderly", broker.name_servers, tmp_path, route_interval_ms=50)
    for round in range(5):
        send(broker, f"round {round}:", 20)
        member.wait_for(f"round {round}:", 20)
        eventually(member.has_marked, "the queue is known")
        member.consumer._member.client.call(doubt(member))
    assert len(member.got) == 100
    assert member.consumer.statistics["new_lives"] == 0
    member.close()


async def doubt(member: Member) -> None:
    fetcher = member.consumer._member.parts.fetcher
    fetcher.doubt("orders")
    assert await fetcher._by_queue[QUEUE].life.look() is None


@pytest.mark.parametrize("kind", ["orderly", "by key", "concurrent", "lite", "ordered polling"])
def test_a_queue_that_comes_back_and_is_read_from_its_start_is_read_once(
    kind: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """It was away in a life of the topic with fewer queues; its offset went with the topic."""
    queue = MessageQueue("orders", "b", 1)

    def fill(name: str, count: int) -> None:
        with Producer("p", name_servers=broker.name_servers) as producer:
            for number in range(count):
                producer.send(Message("orders", f"{name} {number}".encode()), queue=queue)

    def held() -> Any:
        return member.consumer._member.parts.fetcher._by_queue.get(queue)

    def is_marked_at(offset: int) -> bool:
        mark = held() and held().life.mark
        return mark is not None and mark.offset == offset

    with Admin(name_servers=broker.name_servers) as admin:
        admin.create_topic("orders", 2)
        fill("old", 30)
        soon = {"route_interval_ms": 50, "rebalance_interval_ms": 100}
        member = Member(kind, broker.name_servers, tmp_path, pull_delay_on_error_ms=50, **soon)
        member.wait_for("old", 30)
        eventually(lambda: is_marked_at(29), "the queue is known")
        admin.delete_topic("orders")
        admin.create_topic("orders", 1)
        eventually(lambda: held() is None, "it is given up")
        with WireClient(broker.port) as client:
            client.create_topic("orders", 2)
        fill("new", 5)
        member.wait_for("new", 5)
        # By a look of its own, or of the mark before.
        eventually(lambda: is_marked_at(4), "the queue is known anew")
    assert sorted(body for body in member.got if body.startswith("new")) == [
        f"new {number}" for number in range(5)
    ]
    member.close()
