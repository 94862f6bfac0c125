"""A guard of listeners' transactions: a statement that would end one is refused before it is run,
and an outage is remembered even if the listener handles it."""

from __future__ import annotations

import functools
import re
from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import DBAPIError

from ordermq.errors import StateError
from ordermq.sql.databases import Database

_GUARD = "ordermq_guard"  # execution options of a connection
_MAY_COMMIT = "ordermq_may_commit"
# Not ROLLBACK TO, which undoes a part.
_ENDS = re.compile(
    r"\s*(?:(?:BEGIN|START|COMMIT|END|ABORT|PREPARE\s+TRANSACTION)\b"
    r"|ROLLBACK\b(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))",
    re.IGNORECASE,
)
# Comments, and what is quoted: PostgreSQL's strings with escapes and with dollars, the strings and
# the names of both.
_NOT_READ = re.compile(
    r"--[^\n]*|/\*.*?\*/|\be'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
    r"|\$(\w*)\$.*?\$\1\$",
    re.IGNORECASE | re.DOTALL,
)
# A trigger or a function, whose body has statements and an END of its own.
_CREATES_A_BODY = re.compile(r"\s*CREATE\b.*\bBEGIN\b", re.IGNORECASE | re.DOTALL)


@functools.lru_cache(maxsize=1_024)  # programs have few statements, and run each again and again
def _ending_in(statement: str) -> str | None:
    """Return the part of a statement that would end its transaction; None if it has none.

    Drivers also run what stands behind a comment, and several statements that are given as one.
    """
    read = _NOT_READ.sub(" ", statement)
    if _CREATES_A_BODY.match(read):
        return None
    return next((part for part in read.split(";") if _ENDS.match(part)), None)


class Guard:
    """Record of the statements of one transaction.

    Attributes:
        outage: the last error of the database that fails the call, whatever the listener does.
    """

    __slots__ = ("_database", "outage")

    def __init__(self, database: Database) -> None:
        self._database = database
        self.outage: DBAPIError | None = None

    def watch(self, connection: Connection) -> None:
        """Begin to watch the statements of a listener."""
        connection.execution_options(**{_GUARD: self})

    def before(self, connection: Connection, statement: str) -> None:
        if (ending := _ending_in(statement)) is not None:
            raise StateError(
                f"{' '.join(ending.split())[:40]!r} would end the transaction of the call, "
                "which the library ends; use connection.begin_nested() to undo a part of it"
            )
        if not self._database.is_in_transaction(connection):
            # Run now, it would be in another transaction, or committed by itself.
            raise StateError(
                "the transaction of the call is over: an earlier statement rolled everything back "
                "(INSERT OR ROLLBACK, RAISE(ROLLBACK), a full disk), or it was ended by hand"
            ) from self.outage

    def after(self, error: object) -> None:
        if (
            isinstance(error, DBAPIError)
            and (error.connection_invalidated or self._database.is_outage(error))
            and not self._database.may_be_handled(error)
        ):
            self.outage = error


def guard_engine(view: Engine, engine: Engine) -> None:
    """Guard the connections of an engine's view.

    Args:
        engine: of the user; errors are heard of its connections, and ignored unless they are the
            view's.
    """
    event.listen(view, "commit", _refuse_commit)
    event.listen(view, "before_cursor_execute", _before_statement)
    event.listen(engine, "handle_error", _after_error)  # once, however often it is asked for


def allow_commits(connection: Connection) -> None:
    """Let a connection commit."""
    connection.execution_options(**{_MAY_COMMIT: True})


def engine_that_commits(view: Engine) -> Engine:
    """Return a view of a guarded engine whose connections may commit."""
    return view.execution_options(**{_MAY_COMMIT: True})


def _refuse_commit(connection: Connection) -> None:
    """Refuse a commit of a listener's: its changes would stand without the offset."""
    if not connection.get_execution_options().get(_MAY_COMMIT):
        raise StateError(
            "the library commits the transaction of a call, together with the offset, after the "
            "listener has returned; leave connection.commit() out"
        )


def _before_statement(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    executemany: bool,
) -> None:
    guard = connection.get_execution_options().get(_GUARD)
    if guard is not None:
        guard.before(connection, statement)


def _after_error(context: ExceptionContext) -> None:
    if context.connection is not None:
        guard = context.connection.get_execution_options().get(_GUARD)
        if guard is not None:
            guard.after(context.sqlalchemy_exception)
