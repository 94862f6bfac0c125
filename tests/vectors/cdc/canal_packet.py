"""Write canal_packet.hex by the protocol buffers' own library, from Canal's published files.

for name in EntryProtocol CanalProtocol: fetch it from Canal's protocol/src/main/java
sed -i 's/^package .*/package packet;/' CanalProtocol.proto    # both have a HEARTBEAT
python -m grpc_tools.protoc -I. --python_out=. EntryProtocol.proto CanalProtocol.proto
python canal_packet.py >canal_packet.hex
"""

# mypy: ignore-errors
from __future__ import annotations

import sys

import CanalProtocol_pb2 as packets
import EntryProtocol_pb2 as entries


def column(index, name, value, sql, mysql, *, key=False, updated=False):
    made = entries.Column(index=index, sqlType=sql, name=name, isKey=key, updated=updated)
    made.mysqlType, made.isNull = mysql, value is None
    if value is not None:
        made.value, made.length = value, len(value)
    made.props.add(key="k", value="v")
    return made


def row(name, *, updated=False):
    return [
        column(0, "id", "18446744073709551615", -5, "bigint(20) unsigned", key=True),
        column(1, "name", name, 12, "varchar(32)", updated=updated),
        column(2, "price", "9.00", 3, "decimal(10,2)"),
        column(3, "raw", "\x00\xff", 2004, "blob"),
    ]


def entry(kind, value, event=None):
    header = entries.Header(
        version=1,
        logfileName="mysql-bin.000007",
        logfileOffset=4711,
        serverId=3,
        serverenCode="UTF-8",
        executeTime=1589373560000,
        sourceType=entries.MYSQL,
        schemaName="shop",
        tableName="größe",
        eventLength=99,
        eventType=event,
        gtid="3e11fa47:23",
    )
    header.props.add(key="rowsCount", value="1")
    made = entries.Entry(header=header, entryType=kind, storeValue=value.SerializeToString())
    return made.SerializeToString()


def change(event, *rows, sql=""):
    value = entries.RowChange(tableId=12, eventType=event, isDdl=bool(sql), sql=sql)
    for before, after in rows:
        value.rowDatas.add(beforeColumns=before, afterColumns=after)
    return entry(entries.ROWDATA, value, event)


messages = packets.Messages(
    batch_id=9,
    messages=[
        entry(entries.TRANSACTIONBEGIN, entries.TransactionBegin(threadId=5)),
        change(entries.INSERT, ([], row("lämp")), ([], row(""))),
        change(entries.UPDATE, (row("lämp"), row(None, updated=True))),
        change(entries.DELETE, (row(None), [])),
        change(entries.ALTER, sql="ALTER TABLE goods ADD COLUMN x int"),
        change(entries.TRUNCATE, sql="TRUNCATE TABLE goods"),
        entry(entries.TRANSACTIONEND, entries.TransactionEnd(transactionId="17")),
    ],
)
packet = packets.Packet(type=packets.MESSAGES, version=1, body=messages.SerializeToString())
sys.stdout.write(packet.SerializeToString().hex() + "\n")
