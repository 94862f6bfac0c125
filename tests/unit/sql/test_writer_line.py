"""Transactions of one store on a SQLite file begin in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from ordermq.model.message_queue import MessageQueue
from ordermq.sql import AsyncSqlOffsetStore, SqlOffsetStore
from ordermq.sql.writer_line import Turn, WriterLine
from tests.waiting import eventually

QUEUES = [MessageQueue("orders", "b", number) for number in range(4)]


def test_a_backlog_gets_its_next_turn_behind_all_that_wait(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 60})
    store = SqlOffsetStore(engine)
    store.open()
    begun: list[int] = []

    def work(number: int) -> None:
        transaction = store.begin("g", QUEUES[number], 1, len(begun))
        begun.append(number)
        transaction.commit(len(begun))

    for queue in QUEUES:
        store.take_over("g", queue, 1)
    line = store._line
    assert line is not None
    transaction = store.begin("g", QUEUES[0], 1, 0)
    threads = []
    for place, number in enumerate([1, 2, 3, 0], 2):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        eventually(lambda place=place: len(line) == place, "it waits in line")  # type: ignore[misc]
    transaction.commit(0)
    for each in threads:
        each.join()
    assert begun == [1, 2, 3, 0]
    assert len(line) == 0
    engine.dispose()


def test_the_line_of_asyncio_is_in_order_and_a_cancelled_wait_leaves_it(tmp_path: Path) -> None:
    begun: list[int] = []

    async def work(store: AsyncSqlOffsetStore, number: int) -> None:
        transaction = await store.begin("g", QUEUES[number], 1, 0)
        begun.append(number)
        await transaction.roll_back()

    async def run() -> None:
        options = {"connect_args": {"timeout": 60}}
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db", **options)
        store = AsyncSqlOffsetStore(engine)
        await store.open()
        line = store._offsets._line
        assert line is not None
        for queue in QUEUES:
            await store.take_over("g", queue, 1)
        transaction = await store.begin("g", QUEUES[0], 1, 0)
        tasks = []
        for number in [1, 2, 3, 0]:
            tasks.append(asyncio.create_task(work(store, number)))
            await asyncio.sleep(0)
            assert len(line) == 1 + len(tasks)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        await transaction.roll_back()
        await asyncio.wait(tasks)
        assert len(line) == 0
        await engine.dispose()

    asyncio.run(run())
    assert begun == [1, 3, 0]


def test_a_turn_that_nobody_ends_any_more_ends_with_its_object() -> None:
    line = WriterLine()
    turn: Turn | None = line.take()
    assert turn is not None
    next_one = Turn(line)
    turn = None
    gc.collect()
    assert line.is_first(next_one.event)
    next_one.end()
    next_one.end()
    assert len(line) == 0


def test_who_has_waited_in_line_for_all_of_the_time_goes_on() -> None:
    line = WriterLine()
    line.timeout_s = 0.01
    first = line.take()
    second = line.take()
    assert not line.is_first(second.event)
    first.end()
    assert line.is_first(second.event)


def test_the_wait_in_line_is_as_long_as_that_for_the_file(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 17})
    store = SqlOffsetStore(engine)
    store.open()
    assert store._line is not None
    assert store._line.timeout_s == pytest.approx(17)
    engine.dispose()
