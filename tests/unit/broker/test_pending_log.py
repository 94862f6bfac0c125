"""The log whose messages leave one by one, against a dictionary, with restarts in between."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ordermq import core
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Append, PendingLog, Statement, Store, Write
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.model.stored_message import StoredMessage, host_bytes

CONFIG = BrokerConfig(durability="os")
HOST = host_bytes("127.0.0.1", 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1 << 40)),
        st.tuples(st.just("leave"), st.integers(0, 7)),
        st.tuples(st.just("number"), st.integers(0, 7)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


class Shelf:
    """One store at a time, and what should be in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.expected: dict[int, int] = {}
        self.given: set[int] = set()
        self.open()

    def open(self) -> None:
        self.store = Store(self.path, CONFIG)
        self.store.start(asyncio.get_running_loop(), BrokerStatistics())
        self.pending = PendingLog(self.store, "pending")
        assert dict(self.pending.load()) == self.expected

    async def write(self, statements: list[Statement], *appends: Append) -> None:
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store.submit(Write(done.set_result, appends, statements))
        assert await done is None

    async def add(self, number: int) -> None:
        writer = core.RecordWriter("pending", 0, HOST, HOST)
        block = writer.write(
            str(number).encode(), b"", flag=0, sys_flag=0, born_ms=0, stored_ms=0, tag=number
        )
        append = Append(self.pending.log, block)
        await self.write([], append)
        assert append.first_offset not in self.given, "an offset was given twice"
        self.given.add(append.first_offset)
        self.expected[append.first_offset] = number

    async def leave(self, which: int) -> None:
        if self.expected:
            offset = sorted(self.expected)[which % len(self.expected)]
            removal = self.pending.removal(offset)
            await self.write(removal.statements)
            self.pending.removed(removal)
            del self.expected[offset]

    async def number(self, which: int) -> None:
        if self.expected:
            offset = sorted(self.expected)[which % len(self.expected)]
            self.expected[offset] += 1
            await self.write([self.pending.renumber(offset, self.expected[offset])])

    async def restart(self, _: int) -> None:
        self.store.close()
        self.open()

    def check(self) -> None:
        rows = self.store.tags(self.pending.log)
        assert {offset: number for offset, number in rows if number >= 0} == self.expected
        # Marks are few: the newest row's, and one that was the newest before the last write.
        assert len(rows) <= len(self.expected) + 2
        for offset in self.expected:
            assert StoredMessage.read(self.pending.record(offset)).queue_offset == offset


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_pending_messages_are_there_until_they_leave_and_no_offset_is_reused(
    steps: list[tuple[str, int]],
) -> None:
    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            shelf = Shelf(Path(folder) / "broker.db")
            try:
                for name, argument in steps:
                    await getattr(shelf, name)(argument)
                    shelf.check()
                await shelf.restart(0)
            finally:
                shelf.store.close()

    asyncio.run(work())
