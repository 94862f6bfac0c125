"""Frames made from a pattern are those that encoding the whole request makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.remoting.codes import PullFlag, RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.framing import PullFrames, encode
from ordermq.remoting.headers import PullHeader

TEXTS = st.sampled_from(
    ["*", "a || b", '"queueOffset":"7777777"', "%d%b", "Grüße", '"opaque":8888888']
)


def header_of(name: str, flags: int = PullFlag.SUSPEND) -> PullHeader:
    return PullHeader(name, name, 7, 0, 32, flags, subscription=name, broker_name=name)


@given(name=TEXTS, offset=st.integers(0, (1 << 63) - 1), opaque=st.integers(1, (1 << 31) - 1))
def test_a_frame_is_the_encoded_request(name: str, offset: int, opaque: int) -> None:
    frames = PullFrames(header_of(name))
    header = header_of(name)
    header.queue_offset = offset
    whole = Command(RequestCode.PULL_MESSAGE, header.to_ext(), opaque=opaque)
    assert frames.frame(offset, opaque) == encode(whole)
    assert encode(frames.command(offset, opaque)) == encode(whole)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (PullFlag.SUSPEND, RequestCode.PULL_MESSAGE),
        (PullFlag.LITE, RequestCode.LITE_PULL_MESSAGE),
    ],
)
def test_the_flags_say_which_request_it_is(flags: int, code: RequestCode) -> None:
    assert PullFrames(header_of("T", flags)).code == code
