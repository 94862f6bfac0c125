"""Canal's messages where `canal.mq.flatMessage = false`: a packet of protocol buffers with entries.

Each entry becomes what Canal's own converter makes of it, a flat message, so that values are read
in one place. The records have the numbers of Canal's EntryProtocol.proto and CanalProtocol.proto,
and of their fields only those that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ordermq.errors import ChangeRefused, ProtocolError
from ordermq.grpc.protobuf import ProtoMessage, numbered

_MESSAGES = 7  # PacketType
_NOT_COMPRESSED = (0, 1)  # Compression
_ROWDATA = 2  # EntryType
_OTHER_ENTRIES = (1, 3, 4, 5)  # begins and ends of transactions, heartbeats, GTIDs
_TYPES = {
    1: "INSERT", 2: "UPDATE", 3: "DELETE", 4: "CREATE", 5: "ALTER", 6: "ERASE", 7: "QUERY",
    8: "TRUNCATE", 9: "RENAME", 10: "CINDEX", 11: "DINDEX",
}  # fmt: skip


class _Packet(ProtoMessage):
    type: int = numbered(3, default=0)
    compression: int = numbered(4, default=0)
    body: bytes = numbered(5, default=b"")


class _Messages(ProtoMessage):
    entries: list[bytes] = numbered(2, default_factory=list)


class _Header(ProtoMessage):
    execute_time: int = numbered(6, default=0)
    schema_name: str = numbered(8, default="")
    table_name: str = numbered(9, default="")
    gtid: str = numbered(13, default="")


class _Entry(ProtoMessage):
    header: _Header | None = numbered(1, default=None)
    entry_type: int = numbered(2, default=_ROWDATA)
    store_value: bytes = numbered(3, default=b"")


class _Column(ProtoMessage):
    sql_type: int = numbered(2, default=0)
    name: str = numbered(3, default="")
    is_key: bool = numbered(4, default=False)
    is_null: bool = numbered(6, default=False)
    value: str = numbered(8, default="")
    mysql_type: str = numbered(10, default="")


class _RowData(ProtoMessage):
    before: list[_Column] = numbered(1, default_factory=list)
    after: list[_Column] = numbered(2, default_factory=list)


class _RowChange(ProtoMessage):
    event_type: int = numbered(2, default=2)
    is_ddl: bool = numbered(10, default=False)
    sql: str = numbered(11, default="")
    rows: list[_RowData] = numbered(12, default_factory=list)


def flat_messages(body: bytes) -> Iterator[dict[str, Any]]:
    """Return the entries of a packet as flat messages, in their order.

    Raises: ChangeRefused: it is no packet of entries.
    """
    try:
        packet = _Packet.from_bytes(body)
        if packet.type != _MESSAGES:
            raise ChangeRefused(f"packet of Canal of type {packet.type}: expected {_MESSAGES}")
        if packet.compression not in _NOT_COMPRESSED:
            raise ChangeRefused(f"packet of Canal with compression {packet.compression}")
        for data in _Messages.from_bytes(packet.body).entries:
            entry = _Entry.from_bytes(data)
            if entry.entry_type == _ROWDATA:
                yield _flat_message(entry)
            elif entry.entry_type not in _OTHER_ENTRIES:
                raise ChangeRefused(f"entry of Canal of type {entry.entry_type}: not known")
    except ProtocolError as error:
        raise ChangeRefused(f"no packet of Canal: {error}") from error


def _flat_message(entry: _Entry) -> dict[str, Any]:
    change = _RowChange.from_bytes(entry.store_value)
    header = entry.header or _Header()
    kind = _TYPES.get(change.event_type, str(change.event_type))
    flat: dict[str, Any] = {
        "type": kind,
        "database": header.schema_name,
        "table": header.table_name,
        "es": header.execute_time,
        "gtid": header.gtid or None,
        "isDdl": change.is_ddl,
        "sql": change.sql,
    }
    if not change.is_ddl:
        rows = [row.before if kind == "DELETE" else row.after for row in change.rows]
        columns = [column for row in rows for column in row]
        flat["data"] = [_texts(row, header) for row in rows]
        flat["old"] = [_texts(row.before, header) or None for row in change.rows]
        flat["pkNames"] = list(dict.fromkeys(c.name for c in columns if c.is_key))
        flat["sqlType"] = {column.name: column.sql_type for column in columns}
        flat["mysqlType"] = {c.name: c.mysql_type for c in columns if c.mysql_type}
    return flat


def _texts(columns: Sequence[_Column], header: _Header) -> dict[str, str | None]:
    found = {column.name: None if column.is_null else column.value for column in columns}
    if len(found) < len(columns) or "" in found:
        raise ChangeRefused(f"{header.table_name}: columns of an entry without names of their own")
    return found
