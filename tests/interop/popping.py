"""Courses that members which pop go through alike, whether they speak to brokers or to a proxy."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from ordermq import Admin, AsyncConsumer, DeadLetter, LitePullConsumer, PushConsumer
from ordermq.consumer.queue.poll_buffer import PolledBatch
from ordermq.sql import SqlOffsetStore
from tests.interop.cluster import eventually
from tests.interop.run import Run


def share_join_and_leave(
    run: Run, look: Callable[[], None] = lambda: None, **settings: Any
) -> None:
    """Check the order of keys while a second member joins and leaves.

    Args: look: called while the first one is still there.
    """
    run.member("one", **settings)
    with run.flow():
        run.wait_for_more(300, "one")
        run.member("two", **settings)
        run.wait_for_more(200, "two")
        run.leave("two")
        run.wait_for_more(300, "one")
        look()
    run.assert_sound()
    assert run.duplicates() == 0


def kill_one_of_two(run: Run, **settings: Any) -> None:
    """Check the order of keys while one of two members is killed."""
    process = run.member_process("killed", **settings)
    run.member("one", **settings)
    with run.flow():
        run.wait_for_more(100, "killed")
        run.wait_for_more(100, "one")
        process.kill()
        run.wait_for_more(500, "one")
    run.assert_sound()


def bury_one(run: Run, name_servers: str, **settings: Any) -> None:
    """Check that one message that keeps failing goes to the dead letters, and no other.

    Args: name_servers: of the member.
    """
    done: list[int] = []
    consumer = PushConsumer(
        run.group, name_servers=name_servers, on_failure=DeadLetter(3),
        suspend_current_queue_time_ms=10, **settings,
    )  # fmt: skip
    consumer.subscribe(run.topic)

    @consumer.orderly
    def listen(messages: Sequence[Any], context: Any) -> None:
        if messages[0].body == b"7":
            raise ValueError
        done.append(int(messages[0].body))

    with consumer, Admin(run.cluster.name_servers) as admin:
        run.send(20, keys=1)
        eventually(lambda: len(done) == 19, "all others")
        eventually(
            lambda: any(
                (each.group, each.waiting) == (run.group, 1) for each in admin.dead_letters()
            ),
            "its dead letter",
        )
    assert done == [number for number in range(20) if number != 7]


def count_once(run: Run, name_servers: str, database: Path, **settings: Any) -> None:
    """Check that effects are in a database once, though a member leaves without acknowledgements.

    Args: name_servers: of the members.
    """
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 30})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (n INTEGER PRIMARY KEY, k TEXT)"))

    def member(**more: Any) -> PushConsumer:
        store = SqlOffsetStore(engine)
        consumer = PushConsumer(
            run.group, name_servers=name_servers, offset_store=store, **settings | more
        )
        consumer.subscribe(run.topic)

        @consumer.orderly
        def count(messages: Sequence[Any], context: Any) -> None:
            rows = [{"n": int(bytes(each.body)), "k": each.sharding_key} for each in messages]
            context.transaction().execute(text("INSERT INTO effects VALUES (:n, :k)"), rows)

        return consumer

    def counted() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM effects")) or 0)

    # It acknowledges nothing before the end of a batch, and leaves in the middle of one.
    hasty = member(commit_interval_ms=3_600_000)
    with hasty, member():
        run.send(300)
        eventually(lambda: counted() >= 100, "a third of them")
        hasty.close(0.0)
        run.send(300)
        eventually(lambda: counted() == 600, "all that was sent")
    engine.dispose()


def poll_and_iterate(run: Run, name_servers: str, **settings: Any) -> None:
    """Check the order of keys while a thread polls and tasks of another member iterate.

    Args: name_servers: of the members.
    """
    seen: list[tuple[str, str, int]] = []  # who had it, its key, its number

    def take(who: str, batch: PolledBatch) -> None:
        with batch:
            seen.extend((who, str(each.sharding_key), int(bytes(each.body))) for each in batch)

    polled = LitePullConsumer(run.group, name_servers=name_servers, ordered=True, **settings)
    polled.subscribe(run.topic)

    def poll() -> None:
        for batch in polled.batches():
            take("thread", batch)

    async def work(consumer: AsyncConsumer, name: str) -> None:
        async for batch in consumer:
            take(name, batch)

    async def iterate() -> None:
        async with AsyncConsumer(
            run.group, run.topic, name_servers=name_servers, **settings
        ) as consumer:
            workers = [asyncio.create_task(work(consumer, name)) for name in ("a", "b")]
            await asyncio.to_thread(run.send, 600)
            await asyncio.to_thread(eventually, lambda: len(seen) >= 600, "all that was sent")
            consumer.stop()
            await asyncio.gather(*workers)

    with polled:
        poller = threading.Thread(target=poll)
        poller.start()
        asyncio.run(iterate())
        polled.stop()
        poller.join()
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, key, number in seen:
        numbers[key].append(number)
    assert all(found == sorted(found) for found in numbers.values())
    assert sorted(number for _, _, number in seen) == list(range(600))
    assert {who for who, _, _ in seen} == {"thread", "a", "b"}
