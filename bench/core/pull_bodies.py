"""Pull bodies as a broker answers them, the same bytes for us and for Java's decoder."""

from __future__ import annotations

from bench import workloads
from ordermq.core import RecordWriter
from ordermq.model import properties as props
from ordermq.model.stored_message import host_bytes

TOPIC = "OrderEvents"
_HOST = host_bytes("10.0.0.1", 10_911)
_BORN_MS = 1_760_000_000_000


def pull_body(
    messages: int,
    body_bytes: int,
    first_offset: int = 0,
    *,
    sharding_keys: int = 0,
    id_shift: int = 0,
) -> bytes:
    """Return stored records (v1), each with a tag, a key and the properties a producer adds.

    Args:
        sharding_keys: so many, in turn; 0: messages have none.
        id_shift: each has the producer's id of the message so many offsets before it.
    """
    writer = RecordWriter(TOPIC, 3, _HOST, _HOST)
    pattern = bytes(range(32, 127))
    body = (pattern * (body_bytes // len(pattern) + 1))[:body_bytes]
    records = b""
    for offset in range(first_offset, first_offset + messages):
        sharding = {props.SHARDING_KEY: f"k{offset % sharding_keys}"} if sharding_keys else {}
        text = props.encode(
            {
                **sharding,
                props.TAGS: f"T{offset % 4}",
                props.KEYS: f"order-{offset:08}",
                props.UNIQ_KEY: f"7F000001A1B2C3D4E5F6{offset - id_shift:012X}",
                props.WAIT: "true",
                "CLUSTER": "DefaultCluster",
            }
        )
        written = writer.write(
            body, text.encode(), flag=0, sys_flag=0, born_ms=_BORN_MS, stored_ms=_BORN_MS + 1
        )
        size = len(written.rows(0, 0)[0][2])
        ((_, _, record),) = written.rows(offset, offset * size)
        records += record
    return records


def sizes() -> list[tuple[int, int]]:
    """(messages, bytes of a body) of every codec figure."""
    return [
        (messages, body_bytes)
        for body_bytes in workloads.CORE_CODEC_BODY_BYTES
        for messages in workloads.CORE_CODEC_MESSAGES
    ]


def case(messages: int, body_bytes: int) -> str:
    return f"{messages} x {body_bytes} bytes"
