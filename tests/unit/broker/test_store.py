"""The store on its own: groups of writes, failed commits, reads
(docs/internals/semantics.md#fencing, design)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append, Statement, Store, Write, awaitable_done
from ordermq.broker.topics import Topic, TopicTable
from ordermq.config import BrokerConfig
from ordermq.core import RecordWriter
from ordermq.errors import StoreError
from ordermq.model.names import TIMER_TOPIC
from ordermq.model.stored_message import StoredMessage, host_bytes
from tests.component.broker.wire_client import batch_body

HOST = host_bytes("127.0.0.1", 1)


def records(store: Store, *bodies: bytes, tag: int = 0, topic: str = "t", queue: int = 0) -> Append:
    writer = RecordWriter(topic, queue, HOST, HOST)
    if len(bodies) == 1:
        made = writer.write(bodies[0], b"", flag=0, sys_flag=0, born_ms=0, stored_ms=1, tag=tag)
    else:
        assert tag == 0, "a batch's tags are those of its properties"
        made = writer.write_batch(batch_body(bodies), sys_flag=0, born_ms=0, stored_ms=1)
    return Append(store.log(topic, queue), made)


def bodies(joined: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(joined):
        size = int.from_bytes(joined[at : at + 4], "big")
        found.append(StoredMessage.read(joined[at : at + size]).body)
        at += size
    return found


def deletion(store: Store) -> asyncio.Future[StoreError | None]:
    dropped = store.end_life("t")

    def finish(error: StoreError | None) -> None:
        store.life_ended("t", is_durable=error is None)

    done, ended = awaitable_done(finish)
    store.submit(Write(done, drops=dropped))
    return ended


class Writer:
    """Submits writes and waits for them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.statistics = BrokerStatistics()

    def submit(self, *appends: Append, sql: str = "") -> asyncio.Future[StoreError | None]:
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        statements = [Statement(sql)] if sql else []
        self.store.submit(Write(done.set_result, appends, statements))
        return done


@asynccontextmanager
async def running(path: Path | None) -> AsyncIterator[Writer]:
    store = Store(path, BrokerConfig())
    writer = Writer(store)
    store.start(asyncio.get_running_loop(), writer.statistics)
    try:
        yield writer
    finally:
        store.close()


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 20))  # type: ignore[arg-type]


def test_writes_of_one_loop_iteration_share_a_transaction_and_end_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            ended: list[int] = []
            appends = [records(writer.store, b"%d" % n) for n in range(100)]
            waits = []
            for n, append in enumerate(appends):
                done = writer.submit(append)
                done.add_done_callback(lambda _, n=n: ended.append(n))
                waits.append(done)
            await asyncio.gather(*waits)
            await asyncio.sleep(0)
            assert writer.statistics.store_groups == 1
            assert ended == list(range(100))
            assert [append.first_offset for append in appends] == list(range(100))

    run(scene)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 23])
def test_a_group_of_any_size_is_stored_in_order(tmp_path: Path, count: int) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            sent = [b"%d" % n for n in range(count)]
            # Some of them come together; a second queue has fewer.
            waits = [writer.submit(records(store, *sent[at : at + 3])) for at in range(0, count, 3)]
            waits += [
                writer.submit(records(store, body, queue=1)) for body in sent[: count // 2 + 1]
            ]
            assert await asyncio.gather(*waits) == [None] * len(waits)
            assert writer.statistics.store_groups == 1
            for queue, expected in ((0, sent), (1, sent[: count // 2 + 1])):
                log = store.log("t", queue)
                found, end = store.read(log, 0, 100, 1_000_000)
                assert (bodies(found), end, log.max_offset) == (
                    expected, len(expected), len(expected),
                )  # fmt: skip
                assert [offset for offset, _ in store.tags(log)] == list(range(len(expected)))

    run(scene)


def test_a_message_is_not_visible_before_its_commit(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            done = writer.submit(records(writer.store, b"x"))
            assert writer.store.log("t", 0).max_offset == 0
            await done
            assert writer.store.log("t", 0).max_offset == 1

    run(scene)


def test_a_failed_commit_fails_its_group_and_leaves_no_hole(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            assert await writer.submit(records(store, b"first")) is None
            good = writer.submit(records(store, b"lost"), records(store, b"new queue", queue=1))
            bad = writer.submit(sql="INSERT INTO no_such_table VALUES (1)")
            errors = await asyncio.gather(good, bad)
            assert all(isinstance(error, StoreError) for error in errors)
            assert store.log("t", 0).max_offset == 1
            assert store.log("t", 1).max_offset == 0
            second, other = records(store, b"second"), records(store, b"other", queue=1)
            assert await writer.submit(second, other) is None
            assert (second.first_offset, other.first_offset) == (1, 0)
            assert bodies(store.read(store.log("t", 0), 0, 32, 1_000_000)[0]) == [
                b"first", b"second",
            ]  # fmt: skip
            assert bodies(store.read(store.log("t", 1), 0, 32, 1_000_000)[0]) == [b"other"]

    run(scene)


def end_of(store: Store, write: Write) -> asyncio.Future[StoreError | None]:
    """Submit a write, and return its end."""
    write.done, ended = awaitable_done(write.done)
    store.submit(write)
    return ended


def nothing(error: StoreError | None) -> None:
    """Take the end of a write that nobody waits for."""


@pytest.mark.parametrize("is_one_group", [True, False])
def test_a_queue_that_is_made_anew_behind_its_end_is_there_after_a_restart(
    tmp_path: Path, *, is_one_group: bool
) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            assert await writer.submit(records(store, b"old", b"older")) is None
            # Twice: a queue may begin and end several times in one group.
            waits: list[asyncio.Future[StoreError | None]] = []
            for life in (b"1", b"2"):
                waits.append(deletion(store))
                waits += [writer.submit(records(store, life + b"-a"))]
                waits += [writer.submit(records(store, life + b"-b"))]
                if not is_one_group:
                    assert await asyncio.gather(*waits) == [None] * 3
                    waits = []
            assert await asyncio.gather(*waits) == [None] * len(waits)
            if is_one_group:
                assert writer.statistics.store_groups == 2
        again = Store(tmp_path / "s.db", BrokerConfig())
        log = again.log("t", 0)
        assert bodies(again.read(log, 0, 9, 1_000_000)[0]) == [b"2-a", b"2-b"]
        assert len(again.rows("SELECT id FROM queues")) == 1
        again.close()

    run(scene)


def test_a_write_that_names_an_ended_queue_fails_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            assert (
                await writer.submit(records(store, b"old"), records(store, b"u", queue=1)) is None
            )
            log, late = store.log("t", 0), records(store, b"late")
            trim = Statement(f"DELETE FROM {log.table} WHERE off < ?", (1,), log)
            for number in range(2):
                ended = []
                if not number:  # in the group in which the queue ends; then in a later one
                    ended.append(deletion(store))
                good = records(store, b"good", queue=5)
                ended += [
                    end_of(store, Write(nothing, statements=[trim])),
                    end_of(store, Write(nothing, [late, records(store, b"with it", queue=6)])),
                    end_of(store, Write(nothing, [good])),
                    end_of(store, Write(nothing, drops=[log])),
                ]
                *_, trimmed, appended, stored, again = await asyncio.gather(*ended)
                assert stored is None
                assert good.first_offset == number
                for error in (trimmed, appended, again):
                    assert "'t' was deleted meanwhile" in str(error)
                assert store.log("t", 6).max_offset == 0
                assert writer.store.failed_commits == 0

    run(scene)


def test_a_write_fails_with_the_one_it_builds_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            first = Write(nothing, statements=[Statement("INSERT INTO no_such_table VALUES (1)")])
            assert await end_of(store, first)
            second = Write(nothing, [records(store, b"x")], needs=[first])
            third = Write(nothing, [records(store, b"y")], needs=[second])
            other = Write(nothing, [records(store, b"z", queue=1)])
            ended = [end_of(store, each) for each in (second, third, other)]
            errors = await asyncio.gather(*ended)
            assert [error is None for error in errors] == [False, False, True]
            assert "builds on" in str(errors[0])
            assert (store.log("t", 0).max_offset, store.log("t", 1).max_offset) == (0, 1)

    run(scene)


def test_a_failed_group_gives_an_ended_queue_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            assert await writer.submit(records(store, b"old")) is None
            log = store.log("t", 0)
            ended = [
                end_of(store, Write(nothing, drops=[log])),
                writer.submit(sql="INSERT INTO no_such_table VALUES (1)"),
            ]
            assert all(await asyncio.gather(*ended))
            assert not log.is_dropped
            assert await end_of(store, Write(nothing, [records(store, b"new")])) is None
            assert bodies(store.read(log, 0, 9, 1_000_000)[0]) == [b"old", b"new"]

    run(scene)


def test_a_change_of_a_log_comes_behind_the_rows_before_it_and_before_those_after_it(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            store = writer.store
            log = store.log("t", 0)
            change = Statement(f"UPDATE {log.table} SET tag = tag + 10", (), log)
            ended = [
                writer.submit(records(store, b"a", tag=1)),
                end_of(store, Write(nothing, statements=[change])),
                writer.submit(records(store, b"b", tag=2)),
                end_of(store, Write(nothing, statements=[change])),
                writer.submit(records(store, b"c", tag=3)),
            ]
            assert await asyncio.gather(*ended) == [None] * 5
            assert writer.statistics.store_groups == 1
            assert store.tags(log) == [(0, 21), (1, 12), (2, 3)]

    run(scene)


def test_successive_failed_commits_are_logged_once_and_so_is_their_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            for _ in range(3):
                assert await writer.submit(sql="INSERT INTO no_such_table VALUES (1)")
            assert await writer.submit(records(writer.store, b"x")) is None
            assert await writer.submit(records(writer.store, b"y")) is None

    run(scene)
    told = [record.getMessage() for record in caplog.records if record.name == "ordermq.broker"]
    assert told == [
        "group commit failed, none acknowledged: writes=1",
        "group commits succeed again: failed_before=3",
    ]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
def test_reads_stop_at_count_bytes_and_end(tmp_path: Path, count: int) -> None:
    async def scene() -> None:
        async with running(None) as writer:
            store = writer.store
            await writer.submit(records(store, *(b"%03d" % n for n in range(100))))
            log = store.log("t", 0)
            size = len(store.read(log, 0, 1, 1)[0])
            for offset in (0, 1, 50, 99):
                for limit in (1, size, 10 * size + 5, 1_000_000):
                    joined, next_offset = store.read(log, offset, count, limit)
                    expected = min(count, 100 - offset, max(limit // size, 1))
                    assert bodies(joined) == [b"%03d" % n for n in range(offset, offset + expected)]
                    assert next_offset == offset + expected

    run(scene)


def test_tagged_reads_stop_at_bytes_too() -> None:
    async def scene() -> None:
        async with running(None) as writer:
            store = writer.store
            for n in range(20):
                await writer.submit(records(store, b"%02d" % n, tag=n % 2))
            log = store.log("t", 0)
            size = len(store.read(log, 0, 1, 1)[0])
            joined, next_offset = store.read_tagged(log, 0, 32, 3 * size, (1,))
            assert bodies(joined) == [b"01", b"03", b"05"]
            assert next_offset == 6

    run(scene)


def test_a_change_of_a_topic_is_answered_when_it_is_durable_and_sent_to_at_once(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            topics = TopicTable(writer.store, BrokerConfig())
            done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
            topics.put(Topic("orders", 4, 4))
            topics.put(Topic("orders", 8, 8), done.set_result)
            assert topics.get("orders") is None
            assert topics.sendable("orders") == Topic("orders", 8, 8)
            assert len(topics.builds_on("orders")) == len(topics.builds_on(TIMER_TOPIC)) == 2
            assert topics.builds_on("bills") == []
            assert await done is None
            assert topics.get("orders") == Topic("orders", 8, 8)
            assert not topics.has_changes
        again = Store(tmp_path / "s.db", BrokerConfig())
        found = TopicTable(again, BrokerConfig()).get("orders")
        again.close()
        assert found is not None
        assert found.read_queues == 8

    run(scene)


def test_a_closed_store_accepts_no_write() -> None:
    async def scene() -> None:
        async with running(None) as writer:
            writer.store.stop_writing()
            with pytest.raises(StoreError, match="closing"):
                writer.submit(records(writer.store, b"x"))

    run(scene)


def test_a_database_of_another_format_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "s.db") as writer:
            await writer.submit(sql="UPDATE meta SET value = 99 WHERE name = 'format'")

    run(scene)
    with pytest.raises(StoreError, match="not one of this version"):
        Store(tmp_path / "s.db", BrokerConfig())
