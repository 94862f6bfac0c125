"""PostgreSqlReader: sends the changes of a PostgreSQL, read from its log (docs/cdc.md).

The server keeps its log from where the replication slot says that the reader has all. That is moved
only behind messages that a broker has stored, so a reader that is killed sends some again, and
loses none.
"""

from __future__ import annotations

import logging
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple, Protocol

from ordermq.cdc.change import (
    POSITION_PROPERTY,
    Change,
    Operation,
    Place,
    Position,
    require_order,
)
from ordermq.errors import ConfigError, DataLoss, KeyFailed, OrderMQError
from ordermq.lazy_imports import needed_from
from ordermq.model.message import Message
from ordermq.producer.producer import Producer
from ordermq.producer.queue_selector import java_index

with needed_from("postgresql"):
    import psycopg
    from psycopg import sql
    from psycopg.pq import ExecStatus

    from ordermq.cdc.pgoutput import POSTGRESQL_EPOCH_MS, Commit, Decoder, Relation, ValueReader

_log = logging.getLogger("ordermq.cdc")
_TEXTS = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c timezone=UTC -c bytea_output=hex "
    "-c extra_float_digits=1"
)
_FEEDBACK_S = 1.0
_LONGEST_PAUSE_S = 10.0
_WAIT_S = 0.05  # for the log, while messages are on their way: their receipts are looked at then


class _Encoder(Protocol):
    def encode(self, value: Any, /) -> bytes: ...


class _InFlight(NamedTuple):
    """Messages of a transaction on their way to brokers; the log continues at `end`."""

    end: int
    receipts: list[tuple[str, Future[Any]]]  # by sharding key


class _SendFailed(Exception):
    """Some messages were not stored; the reader goes back to the last that is confirmed."""


class PostgreSqlReader:
    """Sends each change of some tables as a message, in Canal's or Debezium's form.

    At its first start it sends every row as of one moment, then the changes since. `wal_level` of
    the server must be `logical`; the user needs the attribute REPLICATION and, for a new
    publication, to own the tables.

    Args:
        conninfo: of the database, for psycopg.
        producer: started. Messages get the queue of Java's hash of their sharding key.
        topic: with its queues; their number must stay.
        codec: `CanalCodec` or `DebeziumCodec`.
        tables: `orders`, or `shop.orders`; only for a publication that does not exist yet.
        slot: the name of the replication slot, and of the publication.
        order: "key": a row's changes in one queue; "table": a table's, with truncates.
        max_in_flight: messages on their way at most, besides those of one transaction.
    Attributes:
        sent: messages handed to the producer, with those sent again.
        restarts: times it went back to the last confirmed change.
    Raises: ConfigError: names or numbers that cannot be right.
    """

    def __init__(
        self,
        conninfo: str,
        producer: Producer,
        topic: str,
        codec: _Encoder,
        *,
        tables: Sequence[str] = (),
        slot: str = "ordermq",
        order: str = "key",
        max_in_flight: int = 5_000,
    ) -> None:
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight={max_in_flight}: expected 1 or more")
        if not slot or not all(each.isascii() and (each.isalnum() or each == "_") for each in slot):
            raise ConfigError(f"slot={slot!r}: expected letters, digits and _")
        self._conninfo = conninfo
        self._producer = producer
        self._topic = topic
        self._encode = codec.encode
        self._order = require_order(order)
        self._max_in_flight = max_in_flight
        self._slots = _Slots(slot.lower(), tables)
        self._stopping = threading.Event()
        self.sent = 0
        self.restarts = 0
        # The changes of one run over the log, from the last confirmed change.
        self._in_flight: deque[_InFlight] = deque()
        self._open: list[tuple[str, Future[Any]]] = []  # of the transaction that has not ended
        self._waiting = 0
        self._previous: dict[int, Place] = {}
        # Kept over restarts: the end of the last transaction that is stored, and in which log.
        self._confirmed = 0
        self._log = ("", "")

    def stop(self) -> None:
        """Have `run` return, once what it has sent is stored and confirmed."""
        self._stopping.set()

    def run(self) -> None:
        """Send changes until `stop`; go on by itself after failures of database and brokers.

        Raises:
            ChangeRefused: a change that has no message, as a truncate ordered by key.
            ConfigError: a server, a table, a publication or a slot that cannot be read.
            DataLoss: the server has dropped the log since the last confirmed change.
            OrderMQError: a message that no broker takes.
        """
        pause_s = 0.1
        while not self._stopping.is_set():
            sent = self.sent
            try:
                self._run_once()
            except (psycopg.OperationalError, _SendFailed) as error:
                _log.warning("going back to the last confirmed change in %g s: %s", pause_s, error)
                self.restarts += 1
                self._settle_failed()
                self._stopping.wait(pause_s)
                pause_s = 0.1 if self.sent > sent else min(pause_s * 2, _LONGEST_PAUSE_S)

    def _run_once(self) -> None:
        self._queues = self._producer.queues(self._topic)
        self._in_flight.clear()
        self._open = []
        self._waiting = 0
        self._previous.clear()
        with self._connect() as connection:
            source = self._slots.source(connection)
            self._slots.prepare(connection)
            if not self._slots.has_begun(connection):
                with self._slots.alone(connection):
                    # Another reader may have sent the rows since.
                    if not self._slots.has_begun(connection):
                        self._snapshot(connection, source)
            self._slots.check(connection)
            with self._connect(for_log=True) as stream:
                self._follow(stream, Decoder(self._slots.key_of(connection), source))

    def _connect(self, *, for_log: bool = False) -> closing[psycopg.Connection[Any]]:
        parameters: dict[str, Any] = {"options": _TEXTS}
        if for_log:
            parameters["replication"] = "database"
        return closing(psycopg.connect(self._conninfo, autocommit=True, **parameters))

    # The rows before the changes.

    def _snapshot(self, connection: psycopg.Connection[Any], source: str) -> None:
        """Send all rows as of one moment, and begin the log there.

        If an earlier attempt was killed, rows that it sent may have been deleted since. Its slot
        still has the log, which tells these; they are sent as deletes, before the new rows.
        """
        with self._connect(for_log=True) as exporting:
            is_repeated = self._slots.has_attempted(connection)
            point, snapshot = self._slots.create(exporting, connection)
            _log.info("sending the rows of %s as of %X", self._slots.name, point)
            gone = self._slots.deletes(connection, point, source) if is_repeated else ()
            for index, change in enumerate(chain(gone, self._slots.rows(snapshot, self._connect))):
                # A commit at the point itself is beyond it, and so must its place be.
                self._send(change, Position(source, (point - 1, index), ()))
        self._end_transaction(point)
        self._settle(most=0)
        self._slots.begin(connection)

    # The log.

    def _follow(self, stream: psycopg.Connection[Any], decoder: Decoder) -> None:
        confirmed = self._confirmed_place(stream)
        connection = stream.pgconn
        started = connection.exec_(
            f"START_REPLICATION SLOT {self._slots.name} LOGICAL {_lsn(confirmed)} "
            f"(proto_version '1', publication_names '{self._slots.name}')".encode()
        )
        if started.status != ExecStatus.COPY_BOTH:
            # Held by a reader whose end the server has not noticed: it will.
            raise psycopg.OperationalError(started.error_message.decode(errors="replace"))
        told_s = time.monotonic()
        while not self._stopping.is_set() or decoder.is_inside:
            size, data = connection.get_copy_data(1)
            if size > 0:
                self._take(bytes(data), decoder)
            elif size < 0:
                raise psycopg.OperationalError(_reason(connection))
            else:
                self._settle(most=self._max_in_flight)
                wait_s = _WAIT_S if self._waiting else _FEEDBACK_S
                select.select([connection.socket], [], [], wait_s)
                connection.consume_input()
            if time.monotonic() - told_s >= _FEEDBACK_S:
                self._settle(most=self._max_in_flight)
                self._tell(connection)
                told_s = time.monotonic()
        self._settle(most=0)
        self._tell(connection)

    def _confirmed_place(self, stream: psycopg.Connection[Any]) -> int:
        """Return what this reader itself has confirmed of the server's log; 0: only the slot knows.

        A server that starts again has forgotten what it was told since its last checkpoint.
        """
        told = stream.execute(b"IDENTIFY_SYSTEM").fetchone()
        assert told is not None
        system, timeline, end = map(str, told[:3])
        # A server that went back to a backup counts from there again, on a line of its own.
        if (system, timeline) != self._log or self._confirmed > _of_lsn(end):
            self._log, self._confirmed = (system, timeline), 0
        return self._confirmed

    def _take(self, data: bytes, decoder: Decoder) -> None:
        if data[:1] == b"k":
            (end,) = struct.unpack_from(">Q", data, 1)
            # The server has nothing more up to there; what it had is stored.
            if not self._in_flight and not decoder.is_inside:
                self._confirmed = max(self._confirmed, end)
            return
        for each in decoder.decode(data[25:]):  # behind two places and a time
            if isinstance(each, Commit):
                self._end_transaction(each.end)
                self._settle(most=self._max_in_flight)
            else:
                self._send(each, Position(each.source, each.position or (), ()))

    def _tell(self, connection: psycopg.pq.abc.PGconn) -> None:
        """Tell the server up to where it need not keep the log."""
        end = self._confirmed
        now_us = (time.time_ns() // 1_000_000 - POSTGRESQL_EPOCH_MS) * 1_000
        connection.put_copy_data(b"r" + struct.pack(">QQQqB", end, end, end, now_us, 0))
        while connection.flush():
            select.select([], [connection.socket], [], _FEEDBACK_S)

    # Sending.

    def _send(self, change: Change, position: Position) -> None:
        key = change.sharding_key(self._order)
        number = java_index(key, len(self._queues))
        position = position._replace(previous=self._previous.get(number, ()))
        self._previous[number] = position.place
        message = Message(
            self._topic,
            self._encode(change),
            properties={POSITION_PROPERTY: position.to_property()},
        )
        receipt = self._producer.send_nowait(message, sharding_key=key, queue=self._queues[number])
        self._open.append((key, receipt))
        self._waiting += 1
        self.sent += 1

    def _end_transaction(self, end: int) -> None:
        self._in_flight.append(_InFlight(end, self._open))
        self._open = []

    def _settle(self, most: int) -> None:
        """Confirm what is stored; wait while more messages than that are on their way.

        Raises: _SendFailed: one of them is not stored.
        """
        while self._in_flight:
            end, receipts = self._in_flight[0]
            if self._waiting <= most and not all(receipt.done() for _, receipt in receipts):
                return
            for key, receipt in receipts:
                error = receipt.exception()  # waits for it
                if error is not None:
                    raise _SendFailed(f"message of {key}: {error}")
            self._in_flight.popleft()
            self._waiting -= len(receipts)
            self._confirmed = end

    def _settle_failed(self) -> None:
        """Wait for every message on its way, and let keys that failed go on.

        What is stored before the first that failed counts as confirmed.

        Raises: OrderMQError: what failed will fail again.
        """
        with suppress(_SendFailed):
            self._settle(most=0)
        ended = chain.from_iterable(each.receipts for each in self._in_flight)
        for key, receipt in chain(ended, self._open):
            error = receipt.exception()
            self._producer.resolve(self._topic, key)
            if isinstance(error, OrderMQError) and not (
                error.retriable or isinstance(error, KeyFailed)
            ):
                raise error


class _Slots:
    """The publication, and the slots of its readers; each has the publication's name.

    While rows are sent, there is a slot of that name and `_snapshot`, and while they are sent once
    more one with `_again`. When they are stored, the slot is made a copy of it.
    """

    def __init__(self, name: str, tables: Sequence[str]) -> None:
        self.name = name
        self._tables = tables
        self._attempt = f"{name}_snapshot"
        self._again = f"{name}_again"

    def source(self, connection: psycopg.Connection[Any]) -> str:
        """Return the name of the log: that of the server, and of the slot."""
        (system,) = _row(connection, "SELECT system_identifier FROM pg_control_system()")
        return f"postgresql/{system}/{self.name}"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Make the publication, if there is none.

        Raises: ConfigError: the server's log has no rows; no tables are named.
        """
        (level,) = _row(connection, "SELECT current_setting('wal_level')")
        if level != "logical":
            raise ConfigError(
                f"the server's wal_level is {level}: set it to logical (ALTER SYSTEM SET "
                "wal_level = logical) and restart the server"
            )
        if _exists(connection, "SELECT 1 FROM pg_publication WHERE pubname = %s", self.name):
            return
        if not self._tables:
            raise ConfigError(
                f"there is no publication {self.name!r}: name the tables, tables=[...]"
            )
        tables = [sql.Identifier(*table.split(".", 1)) for table in self._tables]
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
            sql.Identifier(self.name), sql.SQL(", ").join(tables)
        )
        try:
            connection.execute(statement)
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            return  # by a reader that started at the same time
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"publication {self.name!r}: {error}") from error

    def has_begun(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether every row has been sent, so that the log follows."""
        return self._has(connection, self.name)

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Check that the slot can be read.

        Raises: ConfigError: it is of another kind; DataLoss: the server has dropped its log.
        """
        # As a document, since wal_status is there from version 13 on only.
        (slot,) = _row(
            connection,
            "SELECT to_jsonb(s) || jsonb_build_object('is_here', database = current_database()) "
            "FROM pg_replication_slots s WHERE slot_name = %s",
            self.name,
        )
        if slot["plugin"] != "pgoutput" or not slot["is_here"]:
            raise ConfigError(
                f"slot {self.name!r} is of plugin {slot['plugin']} and database "
                f"{slot['database']}, not of pgoutput and this database: choose another name"
            )
        if slot.get("wal_status") == "lost":
            raise DataLoss(
                f"the server has dropped the log of slot {self.name!r}, because the reader was "
                "away for longer than max_slot_wal_keep_size allows: changes are missing. Empty "
                f"the copies, run SELECT pg_drop_replication_slot('{self.name}'), and start the "
                "reader, which sends every row again"
            )

    @contextmanager
    def alone(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Keep other readers of the slot from sending the rows at the same time.

        Raises: psycopg.OperationalError: one of them does.
        """
        told = ("ordermq", self.name)
        (is_ours,) = _row(
            connection, "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))", *told
        )
        if not is_ours:
            raise psycopg.OperationalError(f"another reader is sending the rows of {self.name}")
        yield
        # After an error the connection ends, and the lock with it.
        _row(connection, "SELECT pg_advisory_unlock(hashtext(%s), hashtext(%s))", *told)

    def has_attempted(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether a reader was killed while it sent the rows."""
        self._drop(connection, self._again)
        return self._has(connection, self._attempt)

    def create(
        self, exporting: psycopg.Connection[Any], connection: psycopg.Connection[Any]
    ) -> tuple[int, str]:
        """Create a slot; return its place in the log, and the snapshot of that moment.

        The snapshot is there until the connection is used again or closed.
        """
        name = self._again if self._has(connection, self._attempt) else self._attempt
        # Protocol 9.4's option, which every version takes.
        point, snapshot = exporting.execute(
            f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
        ).fetchone()[1:3]  # type: ignore[index]
        return _of_lsn(point), snapshot

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        """Begin the log where the rows were read; drop what is not needed any more."""
        found = self._again if self._has(connection, self._again) else self._attempt
        _row(
            connection,
            "SELECT pg_copy_logical_replication_slot(%s::name, %s::name)",
            found,
            self.name,
        )
        self._drop(connection, self._again)
        self._drop(connection, self._attempt)

    def deletes(
        self, connection: psycopg.Connection[Any], point: int, source: str
    ) -> Iterator[Change]:
        """Yield what was deleted since the first attempt."""
        decoder = Decoder(self.key_of(connection), source)
        cursor = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s::name, %s::pg_lsn, NULL, "
            "'proto_version', '1', 'publication_names', %s)",
            (self._attempt, _lsn(point), self.name),
        )
        for (data,) in cursor:
            for change in decoder.decode(data):
                if isinstance(change, Change) and change.operation in _GONE:
                    yield change

    def rows(self, snapshot: str, connect: Callable[..., Any]) -> Iterator[Change]:
        """Yield each row of each table, as of the snapshot."""
        now_ms = time.time_ns() // 1_000_000
        values = ValueReader()
        with connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            key_of = self.key_of(connection)
            for oid, schema, table in connection.execute(
                "SELECT format('%%I.%%I', schemaname, tablename)::regclass::oid, schemaname, "
                "tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 2, 3",
                (self.name,),
            ).fetchall():
                columns = connection.execute(
                    "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s AND "
                    "attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                    (oid,),
                ).fetchall()
                relation = Relation(schema, table, tuple(columns), frozenset(), key_of(oid))
                for row in _copied(connection, relation):
                    yield Change(
                        operation=Operation.READ,
                        table=table,
                        database=schema,
                        key_columns=relation.key_columns,
                        after={
                            name: None
                            if text is None
                            else values.read(kind, text.encode(), relation, name)
                            for (name, kind), text in zip(columns, row, strict=True)
                        },
                        committed_ms=now_ms,
                    )
            connection.execute("COMMIT")

    def key_of(self, connection: psycopg.Connection[Any]) -> Callable[[int], tuple[str, ...]]:
        """Return a function that reads the primary key of a table.

        The log names the columns of the replica identity only, which may be all.
        """

        def read(oid: int) -> tuple[str, ...]:
            found = connection.execute(
                "SELECT a.attname FROM pg_index i CROSS JOIN LATERAL "
                "unnest(i.indkey) WITH ORDINALITY AS k(attnum, at) JOIN pg_attribute a "
                "ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
                "WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.at",
                (oid,),
            )
            return tuple(name for (name,) in found)

        return read

    def _has(self, connection: psycopg.Connection[Any], slot: str) -> bool:
        return _exists(connection, "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", slot)

    def _drop(self, connection: psycopg.Connection[Any], slot: str) -> None:
        if self._has(connection, slot):
            _row(connection, "SELECT pg_drop_replication_slot(%s)", slot)


_GONE = (Operation.DELETE, Operation.TRUNCATE)


def _copied(
    connection: psycopg.Connection[Any], relation: Relation
) -> Iterator[tuple[str | None, ...]]:
    statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(name) for name, _ in relation.columns),
        sql.Identifier(relation.schema, relation.name),
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        yield from copy.rows()


def _lsn(place: int) -> str:
    """A place in the log as PostgreSQL writes it, for example `16/B374D848`."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def _of_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _reason(connection: psycopg.pq.abc.PGconn) -> str:
    """Return why the server ended the log."""
    result = connection.get_result()
    told = result.error_message if result is not None else b""
    return told.decode(errors="replace").strip() or "the server ended the log"


def _row(connection: psycopg.Connection[Any], statement: str, *values: object) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values or None).fetchone()
    assert row is not None
    return tuple(row)


def _exists(connection: psycopg.Connection[Any], statement: str, *values: object) -> bool:
    return connection.execute(statement.encode(), values).fetchone() is not None
