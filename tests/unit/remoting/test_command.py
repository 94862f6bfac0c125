"""Commands as bytes and back: frames and headers (docs/internals/protocol.md#frame)."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.errors import ProtocolError
from ordermq.remoting.codes import LanguageCode
from ordermq.remoting.command import (
    Command,
    Framer,
    Serialization,
    encode,
)

JSON_REQUEST = Command(34, {}, b"{}", opaque=1)
BINARY_REQUEST = Command(
    14, {"queueId": "3", "topic": "T1"}, opaque=7, serialization=Serialization.ROCKETMQ
)
BINARY_RESPONSE = Command(
    0,
    remark="ok",
    opaque=7,
    flag=1,
    language=LanguageCode.JAVA,
    serialization=Serialization.ROCKETMQ,
)
CASES = [
    ("remoting/json_request", JSON_REQUEST),
    ("remoting/binary_request", BINARY_REQUEST),
    ("remoting/binary_response", BINARY_RESPONSE),
]

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
# Surrogates cannot travel as UTF-8; texts of length 0 read back as null in the binary form.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
COMMANDS = st.builds(
    Command,
    code=st.integers(0, 32_767),
    ext=st.dictionaries(TEXT, TEXT, max_size=4),
    body=st.binary(max_size=50),
    remark=st.none() | TEXT,
    opaque=INT32,
    flag=st.integers(0, 3),
    language=st.sampled_from(LanguageCode).map(int),
    version=st.integers(0, 32_767),
    serialization=st.sampled_from(Serialization),
)


def frame(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    mark = serialization << 24 | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), mark) + header + body


@pytest.mark.parametrize(("name", "command"), CASES, ids=lambda case: str(case))
def test_a_command_is_written_byte_for_byte_as_java_does(
    vector: Callable[[str], bytes], name: str, command: Command
) -> None:
    assert encode(command) == vector(name)


@pytest.mark.parametrize(("name", "command"), CASES, ids=lambda case: str(case))
def test_a_frame_of_java_is_read_back(
    vector: Callable[[str], bytes], name: str, command: Command
) -> None:
    assert Framer().feed(vector(name)) == [command]


def test_a_stream_fed_byte_by_byte_gives_each_command_at_its_last_byte(
    vector: Callable[[str], bytes],
) -> None:
    stream = b"".join(vector(name) for name, _ in CASES)
    ends = [len(vector("remoting/json_request"))]
    ends.append(ends[0] + len(vector("remoting/binary_request")))
    ends.append(len(stream))
    framer, seen = Framer(), []
    for at in range(len(stream)):
        for command in framer.feed(stream[at : at + 1]):
            seen.append((at + 1, command))
    assert seen == [(end, command) for end, (_, command) in zip(ends, CASES, strict=True)]
    assert framer.buffered_bytes == 0


@given(st.lists(COMMANDS, max_size=5), st.lists(st.integers(0, 2_000), max_size=8))
def test_any_split_of_a_stream_gives_the_same_commands(
    commands: list[Command], cuts: list[int]
) -> None:
    stream = b"".join(map(encode, commands))
    framer, seen, at = Framer(), [], 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        seen += framer.feed(stream[at:cut])
        at = cut
    assert seen == commands
    assert framer.buffered_bytes == 0


@given(st.binary(max_size=200), st.integers(1, 50))
def test_random_bytes_are_a_command_or_a_protocol_error_and_never_pile_up(
    data: bytes, step: int
) -> None:
    framer = Framer(max_frame_bytes=1_024)
    try:
        for at in range(0, len(data), step):
            framer.feed(data[at : at + step])
            assert framer.buffered_bytes < 1_024 + step
    except ProtocolError:
        pass


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
MEMBERS = st.sampled_from(
    ["code", "flag", "opaque", "version", "language", "remark", "extFields", "other"]
)


@given(JSON_VALUES | st.dictionaries(MEMBERS, JSON_VALUES))
def test_any_json_header_is_a_command_or_a_protocol_error(header: object) -> None:
    stream = frame(json.dumps(header).encode("utf-8", "surrogatepass"))
    try:
        (command,) = Framer().feed(stream)
    except ProtocolError:
        return
    assert isinstance(command.language, int)
    assert all(isinstance(value, str) for value in command.ext.values())


@given(st.binary(max_size=60))
def test_any_binary_header_is_a_command_or_a_protocol_error(tail: bytes) -> None:
    head = struct.pack(">hBhii", 14, 3, 479, 7, 0)
    with contextlib.suppress(ProtocolError):
        Framer().feed(frame(head + tail, serialization=1))


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (struct.pack(">iI", 16_777_213, 0), "frame of 16777217 bytes"),
        (struct.pack(">iI", -1, 0), "frame of 3 bytes"),
        (struct.pack(">iI", 3, 0), "frame of 7 bytes"),
        (struct.pack(">iI", 10, 7), "header of 7 bytes"),
        (frame(b"{}", serialization=2), "serialization 2"),
        (frame(b'{"code":0}', serialization=255), "serialization 255"),
        (frame(b"{"), "not JSON"),
        (frame(b"[]"), "not an object"),
        (frame(b'{"code":"ten"}'), "expected numbers"),
        (frame(b"{}"), "expected numbers"),
        (frame(b'{"code":0,"remark":"\xff"}'), "not JSON"),
        (frame(b'{"code":0,"extFields":[1]}'), "extFields"),
        (frame(b'{"code":0,"extFields":{"a":{}}}'), r"extFields\.a"),
        (frame(b'{"code":0,"language":["JAVA"]}'), "language"),
        (frame(b"", serialization=1), "too early"),
        (frame(struct.pack(">hBhiii", 1, 3, 479, 7, 0, 99), serialization=1), "remark of 99"),
        (frame(struct.pack(">hBhiii", 1, 3, 479, 7, 0, -1), serialization=1), "remark of -1"),
        (
            frame(struct.pack(">hBhiii1si", 1, 3, 479, 7, 0, 1, b"\xff", 0), serialization=1),
            "byte 17: a text that is not UTF",
        ),
        (frame(struct.pack(">hBhiiii", 1, 3, 479, 7, 0, 0, 5), serialization=1), "5 bytes of fie"),
    ],
)
def test_a_malformed_stream_raises_the_reason(stream: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Framer().feed(stream)


def test_commands_before_malformed_bytes_are_returned(
    vector: Callable[[str], bytes],
) -> None:
    good = b"".join(vector(name) for name, _ in CASES)
    for bad in (frame(b"{"), frame(b"{}", serialization=2), struct.pack(">iI", -1, 0)):
        framer = Framer()
        assert framer.feed(good[:50]) == []
        with pytest.raises(ProtocolError):
            framer.feed(good[50:] + bad + good)
        assert framer.completed == [command for _, command in CASES]
        with pytest.raises(ProtocolError):  # the stream stays broken
            framer.feed(good)
        assert framer.completed == []


def test_a_frame_of_exactly_the_limit_passes_and_one_byte_more_is_refused_at_its_first_bytes() -> (
    None
):
    header = b'{"code":0}'
    most = frame(header, bytes(1_024 - 8 - len(header)))
    assert len(Framer(1_024).feed(most)) == 1
    with pytest.raises(ProtocolError):
        Framer(1_024).feed(frame(header, bytes(1_025 - 8 - len(header)))[:8])


def test_members_of_a_json_header_may_be_missing_unknown_or_numbers() -> None:
    header = b'{"code":19,"new":[1],"extFields":{"minOffset":5,"ok":true,"none":null}}'
    (command,) = Framer().feed(frame(header))
    assert command == Command(
        19, {"minOffset": "5", "ok": "true", "none": ""}, language=LanguageCode.JAVA, version=0
    )


@pytest.mark.parametrize(
    ("written", "language"), [(b'"GO"', 9), (b"9", 9), (b'"COBOL"', 7), (b"null", 7)]
)
def test_a_language_is_a_name_or_a_number_and_an_unknown_one_is_other(
    written: bytes, language: int
) -> None:
    (command,) = Framer().feed(frame(b'{"code":0,"language":' + written + b"}"))
    assert command.language == language


def test_a_code_over_16_bits_goes_in_json_only() -> None:
    command = Command(200_050)
    assert Framer().feed(encode(command)) == [command]
    command.serialization = Serialization.ROCKETMQ
    with pytest.raises(ProtocolError, match="use JSON"):
        encode(command)


def test_an_answer_repeats_the_opaque_and_carries_the_response_bit() -> None:
    request = Command.request(14, {"topic": "T"})
    answer = request.reply(22, remark="none")
    assert (answer.opaque, answer.is_response, answer.is_oneway) == (request.opaque, True, False)
    assert Command.request(14).opaque != request.opaque
