"""Requests as a client is configured to write them, and templates of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.remoting.codes import PullFlag, RequestCode
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.framing import Framing, PullFrames, SendFrames
from ordermq.remoting.headers import PullHeader, SendHeader
from ordermq.remoting.signing import refusal_reason

TEXTS = st.sampled_from(
    [
        "*",
        "a || b",
        '"queueOffset":"7777777"',
        "%d%b",
        "Grüße",
        '"opaque":8888888',
        '"Signature":""',
        '"f":"7777771"',
        '"i":"7777774"',
    ]
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.just("team"),
        "namespace_v2": st.just("region"),
        "serialize_type": st.sampled_from(["json", "rocketmq"]),
    },
)
ACCOUNTS = st.none() | st.tuples(
    st.text('ab%"7', min_size=1),
    st.text(max_size=80).map("a secret of this test: ".__add__),
    st.sampled_from(["", "a token of this test"]),
)
OFFSETS = st.integers(0, (1 << 63) - 1)
OPAQUES = st.integers(1, (1 << 31) - 1)


def header_of(name: str, offset: int = 0, flags: int = PullFlag.SUSPEND) -> PullHeader:
    return PullHeader(name, name, 7, offset, 32, flags, subscription=name, broker_name=name)


def config_of(settings: dict[str, Any], account: tuple[str, str, str] | None) -> RemotingConfig:
    if account is not None:
        names = ("access_key", "secret_key", "security_token")
        settings = settings | dict(zip(names, account, strict=True))
    return RemotingConfig(**settings)


@given(
    name=TEXTS, settings=SETTINGS, account=ACCOUNTS, offset=OFFSETS, opaque=OPAQUES,
)  # fmt: skip
def test_the_frame_of_a_pull_is_the_encoded_request(
    name: str,
    settings: dict[str, Any],
    account: tuple[str, str, str] | None,
    offset: int,
    opaque: int,
) -> None:
    framing = Framing(config_of(settings, account))
    frame = PullFrames(header_of(name), framing).frame(offset, opaque)
    ext = header_of(name, offset).to_ext()
    assert frame == framing.frame(Command(RequestCode.PULL_MESSAGE, ext, opaque=opaque))
    [read] = Framer().feed(frame)
    assert read.ext["queueOffset"] == str(offset)
    if account is not None:
        assert refusal_reason(read, {account[0]: account[1]}) is None
    if framing.is_plain:
        assert frame == encode(Command(RequestCode.PULL_MESSAGE, ext, opaque=opaque))


@given(
    name=TEXTS,
    properties=TEXTS,
    settings=SETTINGS,
    account=ACCOUNTS,
    numbers=st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1), OFFSETS, st.integers(-(1 << 31), (1 << 31) - 1)
    ),
    opaque=OPAQUES,
    is_batch=st.booleans(),
    unit_mode=st.sampled_from([None, True]),
    body=st.binary(max_size=20),
)
def test_the_frame_of_a_send_is_the_encoded_request(
    name: str,
    properties: str,
    settings: dict[str, Any],
    account: tuple[str, str, str] | None,
    numbers: tuple[int, int, int],
    opaque: int,
    is_batch: bool,
    unit_mode: bool | None,
    body: bytes,
) -> None:
    framing = Framing(config_of(settings, account))
    header = SendHeader(name, name, 3, broker_name=name, unit_mode=unit_mode)
    frames = SendFrames(header, framing)
    header.sys_flag, header.born_timestamp_ms, header.flag = numbers
    header.properties, code = properties, RequestCode.SEND_MESSAGE_V2
    if is_batch:  # its messages have flags and properties of their own
        header.flag, header.properties, header.batch = 0, "", True
        code = RequestCode.SEND_BATCH_MESSAGE
    frame = frames.frame(header, opaque, body)
    assert frame == framing.frame(Command(code, header.to_ext(), body, opaque=opaque))
    if account is not None:
        [read] = Framer().feed(frame)
        assert refusal_reason(read, {account[0]: account[1]}) is None
    if framing.is_plain:
        assert frame == encode(Command(code, header.to_ext(), body, opaque=opaque))


@pytest.mark.parametrize(
    ("settings", "has_templates"),
    [
        ({}, True),
        ({"namespace_v2": "tenant"}, True),
        ({"access_key": "shop", "secret_key": "a secret of this test"}, True),
        ({"namespace": "shop"}, False),
        ({"serialize_type": "rocketmq"}, False),
    ],
)
def test_sends_are_encoded_in_full_where_more_than_a_few_values_differ(
    settings: dict[str, Any], has_templates: bool
) -> None:
    assert Framing(RemotingConfig(**settings)).has_send_templates is has_templates


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (PullFlag.SUSPEND, RequestCode.PULL_MESSAGE),
        (PullFlag.LITE, RequestCode.LITE_PULL_MESSAGE),
    ],
)
def test_the_flags_choose_the_request_code(flags: int, code: RequestCode) -> None:
    assert PullFrames(header_of("T", flags=flags), Framing(RemotingConfig())).code == code


def test_a_name_too_long_with_its_namespace_is_refused() -> None:
    with pytest.raises(ConfigError, match="including its namespace: expected at most"):
        PullFrames(header_of("T" * 120), Framing(RemotingConfig(namespace="n" * 30)))
