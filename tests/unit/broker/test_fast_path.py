"""Bytes read and written by hand equal those of the general classes."""

from __future__ import annotations

import pytest

from ordermq.broker.processors.fast_path import (
    pull_reply_head,
    read_pull_header,
    read_send_header,
    send_reply,
)
from ordermq.errors import ProtocolError
from ordermq.remoting.command import Command, encode
from ordermq.remoting.headers import PullHeader, PullReplyHeader, SendHeader, SendReplyHeader

SEND = SendHeader(
    "p", "orders", 3, 1, 2, 4, "TBW102", 8, "TAGS\1t\2", 5, max_reconsume_times=16
).to_ext()
PULL = PullHeader("g", "orders", 3, 77, 32, 7, 70, 15_000, "a || b", 9, "TAG", 262_144).to_ext()


@pytest.mark.parametrize("left_out", [None, *SEND])
def test_a_send_header_is_read_as_by_the_general_class(left_out: str | None) -> None:
    ext = {name: value for name, value in SEND.items() if name != left_out}
    try:
        expected = SendHeader.from_ext(ext)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=str(error)[:20]):
            read_send_header(ext)
    else:
        assert read_send_header(ext) == expected


@pytest.mark.parametrize("left_out", [None, *PULL])
def test_a_pull_header_is_read_as_by_the_general_class(left_out: str | None) -> None:
    ext = {name: value for name, value in PULL.items() if name != left_out}
    try:
        expected = PullHeader.from_ext(ext)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=str(error)[:20]):
            read_pull_header(ext)
    else:
        assert read_pull_header(ext) == expected


@pytest.mark.parametrize("opaque", [0, 1, -5, 2**31 - 1])
def test_replies_are_written_as_by_the_general_classes(opaque: int) -> None:
    request = Command(310, opaque=opaque)
    reply = SendReplyHeader("AA,BB", 3, 1 << 40, None, "DefaultRegion", "true")
    assert send_reply(opaque, "AA,BB", 3, 1 << 40) == encode(request.reply(0, reply.to_ext()))
    found = PullReplyHeader(5, 1, 1 << 40)
    head = pull_reply_head(opaque, 5, 1, 1 << 40, 4)
    assert head + b"body" == encode(request.reply(0, found.to_ext(), b"body", "FOUND"))
