"""Hand-written header codecs of the two requests that come by the thousand: send and pull.

The general classes of `remoting.headers` take about 5 us per header, half of what a send costs
the broker; these take 1. Anything unusual is left to the general classes, and tests compare
the results of both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ordermq.remoting.codes import PROTOCOL_VERSION
from ordermq.remoting.headers import PullHeader, SendHeader

_WORDS = struct.Struct(">iI")  # frame length, header length (its top byte, JSON, is 0)
_END = f'"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
# The header of a successful send's reply, around message ids, queue id, queue offset and opaque.
SEND_REPLY = (
    b'{"code":0,"extFields":{"msgId":"',
    b'","queueId":"',
    b'","queueOffset":"',
    b'","MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":',
    f",{_END}".encode(),
)


def read_send_header(ext: Mapping[str, str]) -> SendHeader:
    """Return the header that `SendHeader.from_ext` would return."""
    get = ext.get
    try:
        max_reconsume_times = get("l")
        # Positional, in the order of the fields: twelve keyword arguments are slower.
        return SendHeader(
            ext["a"], ext["b"], int(ext["e"]), int(ext["f"]), int(ext["g"]), int(ext["h"]),
            ext["c"], int(ext["d"]), get("i", ""), int(get("j", "0")), None,
            None if max_reconsume_times is None else int(max_reconsume_times),
        )  # fmt: skip
    except (KeyError, ValueError):
        return SendHeader.from_ext(ext)  # it names the missing or malformed field


def read_pull_header(ext: Mapping[str, str]) -> PullHeader:
    """Return the header that `PullHeader.from_ext` would return."""
    get = ext.get
    try:
        max_bytes = get("maxMsgBytes")
        return PullHeader(
            ext["consumerGroup"], ext["topic"], int(ext["queueId"]), int(ext["queueOffset"]),
            int(ext["maxMsgNums"]), int(ext["sysFlag"]), int(ext["commitOffset"]),
            int(ext["suspendTimeoutMillis"]), get("subscription"), int(ext["subVersion"]),
            get("expressionType"), None if max_bytes is None else int(max_bytes),
        )  # fmt: skip
    except (KeyError, ValueError):
        return PullHeader.from_ext(ext)


def send_reply(opaque: int, message_ids: str, queue_id: int, queue_offset: int) -> bytes:
    """Return the frame of a successful send's reply."""
    # Safe to format: ids are hexadecimal digits and commas, everything else is a number.
    parts = SEND_REPLY
    header = b"%b%b%b%d%b%d%b%d%b" % (
        parts[0], message_ids.encode(), parts[1], queue_id, parts[2], queue_offset,
        parts[3], opaque, parts[4],
    )  # fmt: skip
    return _WORDS.pack(4 + len(header), len(header)) + header


def pull_reply_head(
    opaque: int, next_offset: int, min_offset: int, max_offset: int, body_size: int
) -> bytes:
    """Return the part of a pull's reply before its body; the reply has messages."""
    # Without the body: joining it here would copy up to a MiB per pull.
    header = (
        f'{{"code":0,"extFields":{{"nextBeginOffset":"{next_offset}","minOffset":"{min_offset}",'
        f'"maxOffset":"{max_offset}","suggestWhichBrokerId":"0"}},'
        f'"flag":1,"language":"PYTHON","opaque":{opaque},"remark":"FOUND",{_END}'
    ).encode()
    return _WORDS.pack(4 + len(header) + body_size, len(header)) + header
