"""Whatever owners of a queue do, and whenever they stop, each message has its effect once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import create_engine, text

from ordermq.errors import StaleOwner
from ordermq.model.message_queue import MessageQueue
from ordermq.sql import SqlOffsetStore, SqlTransaction

QUEUE = MessageQueue("orders", "broker-a", 0)
OWNERS = st.integers(0, 2)


class Owner:
    """A member as it believes itself to be: its epoch, and what it would process next."""

    def __init__(self, store: SqlOffsetStore) -> None:
        self.store = store
        self.epoch = 0
        self.position = 0


class ExactlyOnceMachine(RuleBasedStateMachine):
    """Three members that take a queue over, freeze, come late, and repeat what they have done.

    The model is two numbers: the newest epoch, and how many messages had their effect. In SQLite
    there is one transaction at a time, so a frozen one is cut here between begin and commit only
    by what its own process does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "app.db"
        self.engine = create_engine(f"sqlite:///{path}")
        with self.engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA synchronous = OFF")
            connection.exec_driver_sql("CREATE TABLE effects (nth INTEGER PRIMARY KEY, n INT)")
        # A store each: what one process knows from memory, another does not.
        self.owners = [Owner(SqlOffsetStore(self.engine)) for _ in range(3)]
        self.owners[0].store.open()
        self.newest = 0
        self.done = 0

    def teardown(self) -> None:
        self.engine.dispose()
        self._folder.cleanup()

    @rule(who=OWNERS, is_late=st.booleans())
    def take_over(self, who: int, is_late: bool) -> None:
        owner = self.owners[who]
        if is_late and 0 < owner.epoch < self.newest:
            # Granted long ago, and asleep since.
            try:
                owner.store.take_over("g", QUEUE, owner.epoch)
            except StaleOwner:
                return
            raise AssertionError("an old epoch took the queue over")
        self.newest += 1
        owner.epoch = self.newest
        offset = owner.store.take_over("g", QUEUE, owner.epoch)
        assert (offset or 0) == self.done
        owner.position = offset or 0

    @rule(who=OWNERS)
    def claim(self, who: int) -> None:
        """A batch was popped: the database gives out the epoch."""
        owner = self.owners[who]
        self.newest += 1
        owner.epoch, offset = owner.store.claim("g", QUEUE)
        assert (owner.epoch, offset or 0) == (self.newest, self.done)
        owner.position = offset or 0

    @precondition(lambda self: self.newest)
    @rule(
        who=OWNERS,
        size=st.integers(1, 4),
        part=st.integers(0, 4),
        ending=st.sampled_from(["commit", "commit, answer lost", "roll back", "killed"]),
    )
    def call(self, who: int, size: int, part: int, ending: str) -> None:
        owner = self.owners[who]
        first, done = owner.position, min(part or size, size)
        is_rightful = owner.epoch == self.newest and first == self.done
        try:
            transaction = owner.store.begin("g", QUEUE, owner.epoch, first)
            self._work(transaction, first, done)
            if ending.startswith("commit"):
                transaction.commit(first + done)
        except StaleOwner:
            assert not is_rightful, "the rightful owner was refused"
            return
        assert is_rightful, "a stale owner, or a repeated batch, was let in"
        transaction.roll_back()
        if ending.startswith("commit"):
            self.done += done
        if ending == "commit":
            owner.position = first + done

    def _work(self, transaction: SqlTransaction, first: int, done: int) -> None:
        for number in range(first, first + done):
            transaction.connection.execute(
                text("INSERT INTO effects (n) VALUES (:n)"), {"n": number}
            )

    @precondition(lambda self: self.newest)
    @rule(who=OWNERS, back=st.integers(0, 5))
    def commit_late(self, who: int, back: int) -> None:
        """The periodic commit of a member, overtaken by transactions or by another owner."""
        owner = self.owners[who]
        if not owner.epoch:
            return
        try:
            owner.store.write("g", QUEUE, max(owner.position - back, 0), owner.epoch)
        except StaleOwner:
            assert owner.epoch < self.newest

    @invariant()
    def each_message_had_its_effect_once_and_in_order(self) -> None:
        with self.engine.connect() as connection:
            seen = list(connection.scalars(text("SELECT n FROM effects ORDER BY nth")))
        assert seen == list(range(self.done))
        assert (self.owners[0].store.read("g", QUEUE) or 0) == self.done


TestExactlyOnce = ExactlyOnceMachine.TestCase
TestExactlyOnce.settings = settings(max_examples=60, stateful_step_count=25)
