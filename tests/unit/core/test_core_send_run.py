"""The core's reader of plain sends takes what is plain, field by field, and never anything else
(ordermq/broker/processors/received_sends.py)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ordermq import core
from ordermq.broker.processors.fast_path import SEND_REPLY, send_reply
from ordermq.broker.recent_sends import unique_id_of
from ordermq.errors import ProtocolError
from ordermq.model import properties as props
from ordermq.model.message import INNER_BATCH
from ordermq.model.stored_message import host_bytes
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command, Framer, encode, make_binary
from ordermq.remoting.headers import SendHeader

MOST_FRAME, MOST_BODY = 4_000, 500
HOST = host_bytes("10.0.0.1", 50_000)
ID = "7F000001AB12"
WORDS = ("DELAY", "TIMER_DELIVER_MS", "TRAN_MSG", "REPLY_TO_CLIENT", "XDELAYED", "UNIQ_KEY")


def properties(number: int, *more: tuple[str, str]) -> str:
    named = (*more, ("UNIQ_KEY", f"{ID}{number:020d}"), ("TAGS", "订单"), ("WAIT", "true"))
    return "".join(f"{name}\x01{value}\x02" for name, value in named)


def send(number: int, queue: int = 0, body: bytes = b"body", **changed: Any) -> Command:
    """A plain send, except for the fields that are changed; None leaves one out."""
    header = SendHeader("group", "orders", queue, 0, 1_700_000_000_000 + number, number % 5)
    header.properties = properties(number)
    ext = {name: value for name, value in (header.to_ext() | changed).items() if value is not None}
    return Command(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=number)


def read(data: bytes) -> core.contract.SendRun:
    return core.SendRun(data, max_frame_bytes=MOST_FRAME, max_body_bytes=MOST_BODY)


def is_special(ext: Mapping[str, str], properties: str) -> bool:
    """Return True if a send may need more than its queue."""
    # The words may stand in a value, too, and mean nothing there.
    return (
        ext.get("j", "0") != "0"  # a retry
        or "l" in ext
        or props.REPLY_TO_CLIENT in properties
        or props.TRANSACTION_PREPARED in properties
        or "DELAY" in properties
        or "TIMER_DELIVER" in properties
        or bool(int(ext["f"]) & INNER_BATCH)  # refused
    )


def is_plain(command: Command) -> bool:
    """The reference: what needs nothing but its queue."""
    ext = command.ext
    if command.code != RequestCode.SEND_MESSAGE_V2 or command.is_response:
        return False
    try:
        record(command)
        assert len(ext["a"]) + len(ext["c"]) >= 0
        assert int(ext["d"]) >= 0
    except (KeyError, ValueError, OverflowError):
        return False
    unique_id = unique_id_of(ext["i"])
    return (
        unique_id is not None and len(command.body) <= MOST_BODY and not is_special(ext, ext["i"])
    )


def record(command: Command) -> tuple[int, bytes]:
    ext = command.ext
    writer = core.RecordWriter(ext["b"], int(ext["e"]), HOST, HOST)
    block = writer.write(
        command.body, ext["i"].encode(), flag=int(ext["h"]), sys_flag=int(ext["f"]),
        born_ms=int(ext["g"]), stored_ms=77,
    )  # fmt: skip
    return block.tags[0], bytes(block.rows(0, 0)[0][2])


def check_against_reference(data: bytes) -> int:
    """Compare a run with the commands of the same bytes; return how many sends it has."""
    run = read(data)
    framer = Framer(MOST_FRAME)
    # What the run took is whole frames that the reference reads, too, and takes for plain.
    commands = framer.feed(data[: run.size])
    assert framer.buffered_bytes == 0
    assert len(commands) == len(run)
    assert all(map(is_plain, commands))
    assert run.requests() == [(one.opaque, one.flag) for one in commands]
    parts: dict[tuple[str, int], list[Command]] = {}
    for one in commands:
        parts.setdefault((one.ext["b"], int(one.ext["e"])), []).append(one)
    assert run.queues() == list(parts)
    for number, ((topic, queue), sends) in enumerate(parts.items()):
        ids = [unique_id_of(one.ext["i"]) or "" for one in sends]
        assert run.unique_ids(number) == ids == sorted(set(ids))
        assert len({unique_id[:-12] for unique_id in ids}) == 1
        block = run.write(number, core.RecordWriter(topic, queue, HOST, HOST), 77)
        written = [bytes(row[2]) for row in block.rows(0, 0)]
        expected = [record(one) for one in sends]
        assert block.tags == [tag for tag, _ in expected]
        # The second record has other offsets: they are compared from behind them on.
        assert [one[:20] + one[36:] for one in written] == [
            one[:20] + one[36:] for _, one in expected
        ]
    places = [(1_000 * number, (number + 1) << 40) for number in range(len(parts))]
    assert run.answers(SEND_REPLY, HOST.hex().upper().encode(), places) == answers(
        commands, list(parts), places
    )
    return len(run)


def answers(
    commands: list[Command], parts: list[tuple[str, int]], places: list[tuple[int, int]]
) -> bytes:
    found, next_of = b"", dict.fromkeys(parts, 0)
    for one in commands:
        key = (one.ext["b"], int(one.ext["e"]))
        queue_offset, physical_offset = (first + next_of[key] for first in places[parts.index(key)])
        next_of[key] += 1
        if not one.is_oneway:
            message_id = f"{HOST.hex().upper()}{physical_offset:016X}"
            found += send_reply(one.opaque, message_id, key[1], queue_offset)
    return found


def as_java_writes(command: Command) -> bytes:
    """The frame with blanks between the members, and letters escaped that need no escape."""
    members = {
        "code": command.code, "extFields": dict(command.ext), "flag": command.flag,
        "language": "JAVA", "opaque": command.opaque, "serializeTypeCurrentRPC": "JSON",
        "version": 475,
    }  # fmt: skip
    header = json.dumps(members, indent=1, ensure_ascii=False).encode()
    return (
        struct.pack(">iI", 4 + len(header) + len(command.body), len(header)) + header + command.body
    )


def test_plain_sends_are_all_taken_in_parts_by_queue() -> None:
    sends = [send(number, queue=number % 3) for number in range(50)]
    for one in sends[::7]:
        one.flag = 2
    data = b"".join(map(encode, sends))
    assert check_against_reference(data) == 50
    assert check_against_reference(b"".join(map(as_java_writes, sends))) == 50
    run = read(data + b"\x00\x00")
    assert (len(run), run.size) == (50, len(data))


def test_other_spellings_of_plain_values_are_taken() -> None:
    escapes = properties(2, ("X", '"\\/\b\f\n\r\t\x00\x7f é 😀'))
    last = f"UNIQ_KEY\x01{ID}{5:020d}\x02X\x01open"
    sends = [
        send(1, j=None, k="false", m="true", n="broker-a"),
        send(2, i=escapes),
        send(3, e="000", g="0", f="2147483455", h="2147483647"),
        send(4, body=b""),
        send(5, i=last),
        send(6, body=b"x" * MOST_BODY, b="orders"),
        send(7, b="t" * 200, a="g" * 300, c=""),
    ]
    assert check_against_reference(b"".join(map(encode, sends))) == len(sends)
    assert check_against_reference(b"".join(map(as_java_writes, sends))) == len(sends)


@pytest.mark.parametrize(
    ("byte", "is_plain_text"),
    [(byte, True) for byte in b" !#[]~\x7f"]
    + [(byte, False) for byte in b'\x00\x1f"\\\x80\xa2\xdc'],
)
def test_a_byte_of_a_text_means_the_same_wherever_it_stands(byte: int, is_plain_text: bool) -> None:
    # A text is searched in steps of eight bytes, and what is left of it byte by byte.
    for size in range(20):
        for at in range(size + 1):
            group = "g" * at + "\x01" + "g" * (size - at)
            data = encode(send(1, a=group.replace("\x01", "~"))).replace(b"~", bytes([byte]))
            assert check_against_reference(data) == is_plain_text, group


def test_an_escape_is_undone_wherever_it_stands() -> None:
    for size in range(20):
        for at in range(size + 1):
            value = "x" * at + '\x01"\\' + "x" * (size - at)
            assert check_against_reference(encode(send(1, i=properties(1, ("X", value))))) == 1


NOT_PLAIN: Mapping[str, Command] = {
    "code": Command(10, send(2).ext, opaque=2),
    "batch": Command(320, send(2).ext, opaque=2),
    "response": Command(310, send(2).ext, opaque=2, flag=1),
    "remark": Command(310, send(2).ext, opaque=2, remark="why"),
    "negative opaque": Command(310, send(2).ext, opaque=-1),
    **{f"no field {name}": send(2, **{name: None}) for name in "abcdefghi"},
    "unknown field": send(2, x="1"),
    "signature": send(2, Signature="1", AccessKey="2"),
    "a retry": send(2, j="1"),
    "a mark of an inner batch": send(2, f="64"),
    "the other mark": send(2, f="129"),
    "most retries": send(2, l="3"),
    "body": send(2, body=b"x" * (MOST_BODY + 1)),
    "frame": send(2, a="x" * MOST_FRAME),
    **{f"{name}={value}": send(2, **{name: value}) for name in "defgh"
       for value in ("", "-1", " 1", "1_0", "+1", "x", "9" * 19, str(1 << 70))},
    **{word: send(2, i=properties(2, (word, "1"))) for word in WORDS},
    **{f"value {word}": send(2, i=properties(2, ("X", word))) for word in WORDS[:4]},
    "no id": send(2, i="WAIT\x01true\x02"),
    "no end of the id": send(2, i=f"UNIQ_KEY\x01{ID}{2:020d}"),
    "short id": send(2, i="UNIQ_KEY\x0112345678901\x02"),
    "id within a name": send(2, i=f"X{properties(2)[0:]}"),
    "wide id": send(2, i=f"UNIQ_KEY\x01{ID}é{2:019d}\x02"),
    "a longer id": send(2, i=f"UNIQ_KEY\x01{ID}{90:021d}\x02"),
    "the same id": send(1),
    "a lower id": send(0),
    "another producer": send(2, i=properties(2).replace("AB12", "AB13")),
    "long properties": send(2, i=properties(2, ("X", "x" * 33_000))),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_ends_the_run(name: str) -> None:
    before, odd, behind = encode(send(1)), NOT_PLAIN[name], encode(send(3))
    data = before + encode(odd) + behind
    run = read(data)
    assert (len(run), run.size) == (1, len(before))
    assert check_against_reference(data) == 1
    is_about_its_place = name in ("a longer id", "the same id", "a lower id", "another producer")
    assert len(read(encode(odd))) == is_about_its_place


def test_headers_of_other_forms_end_the_run() -> None:
    binary = send(2)
    make_binary(binary)
    whole = json.loads(encode(send(2))[8:-4])
    fields = json.dumps(whole["extFields"], ensure_ascii=False)
    plain = b'{"code":310,"opaque":2,"extFields":' + fields.encode() + b"}"
    assert len(read(struct.pack(">iI", 4 + len(plain), len(plain)) + plain)) == 1
    headers = [
        b"", b"{}", b"[]", b"{", b"null", b'{"code":310}', b'{"code":310,"extFields":{}}',
        *(json.dumps(whole | changed, ensure_ascii=False).encode() for changed in (
            {"more": 1}, {"code": "310"}, {"opaque": 1.0}, {"opaque": 1 << 31}, {"opaque": -1},
            {"flag": None}, {"version": "1"}, {"language": 3}, {"language": "\n"},
            {"extFields": None}, {"extFields": {**whole["extFields"], "a": 1}},
        )),
        b'{"code":310,"code":310,"opaque":2,"extFields":' + fields.encode() + b"}",
        b'{"code":310,"opaque":02,"extFields":' + fields.encode() + b"}",
        b'{"code":310,"opaque":2,"extFields":' + fields.encode() + b"} x",
        b'{"code":310,"opaque":2,"extFields":' + fields.encode() + b",}",
        b'{"code":310,"opaque":2,"extFields":' + fields.encode()[:-1] + b',"a":"b"}}',
        *(b'{"code":310,"opaque":2,"extFields":' + fields.encode().replace(old, new) + b"}"
          for old, new in ((b"orders", b"\xff"), (b"orders", b"o\\u0072"),
                           (b"\\u0001", b"\\u01"), (b"\\u0001", b"\1"),
                           (b"WAIT", b"W\\u00ffIT"))),
    ]  # fmt: skip
    frames = [struct.pack(">iI", 4 + len(one), len(one)) + one for one in headers]
    frames += [encode(binary), struct.pack(">iI", 3, 0), struct.pack(">iI", -1, 0)]
    frames += [struct.pack(">iI", 100, 97) + bytes(96), struct.pack(">iI", 1 << 30, 0)]
    for odd in frames:
        before = encode(send(1))
        run = read(before + odd + encode(send(3)))
        assert (len(run), run.size) == (1, len(before)), odd


def test_a_run_ends_at_a_frame_that_is_not_whole() -> None:
    one = encode(send(1))
    two = one + encode(send(2))
    for end in range(len(two) + 1):
        run = read(two[:end])
        assert (len(run), run.size) == ((0, 0) if end < len(one) else (1, len(one))) or (
            end == len(two) and (len(run), run.size) == (2, len(two))
        )


def test_many_queues_end_the_run() -> None:
    sends = [send(number, queue=number) for number in range(300)]
    assert check_against_reference(b"".join(map(encode, sends))) == 256


def test_wrong_arguments_are_refused() -> None:
    run = read(encode(send(1)))
    writer = core.RecordWriter("orders", 0, HOST, HOST)
    for part in (1, 2**40):
        with pytest.raises(ValueError, match="part"):
            run.unique_ids(part)
        with pytest.raises(ValueError, match="part"):
            run.write(part, writer, 0)
    for around, offsets in ((SEND_REPLY[:4], [(0, 0)]), (SEND_REPLY, []), (SEND_REPLY, [(-1, 0)])):
        with pytest.raises(ValueError, match="answers"):
            run.answers(around, b"", offsets)


def test_records_that_are_too_long_are_refused() -> None:
    run = read(encode(send(1)))
    long = core.RecordWriter("t" * 32_767, 0, HOST, HOST)
    assert len(run.write(0, long, 0)) == 1  # of another queue, which is the caller's business


plain_sends = st.builds(
    send,
    st.integers(0, 400),
    st.integers(0, 3),
    st.binary(max_size=40),
)
other_commands = st.one_of(
    st.sampled_from(list(NOT_PLAIN.values())),
    st.builds(Command, st.integers(0, 400), opaque=st.integers(0, 9)),
    st.builds(
        send,
        st.integers(0, 400),
        i=st.text(st.sampled_from('\x01\x02UNIQ_KEYDELAYé\\"x'), max_size=40),
    ),
)


@given(
    st.lists(plain_sends, max_size=8).map(lambda sends: sorted(sends, key=lambda one: one.opaque)),
    st.lists(st.one_of(plain_sends, other_commands), max_size=4),
    st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
@example([send(1), send(2)], [], [(11, ord("1"))], False)
def test_a_run_of_any_bytes_is_what_the_reference_reads(
    sends: list[Command], others: list[Command], damage: list[tuple[int, int]], is_java: bool
) -> None:
    write = as_java_writes if is_java else encode
    data = bytearray(b"".join(map(write, sends + others)))
    for at, byte in damage:
        if at < len(data):
            data[at] = byte
    taken = check_against_reference(bytes(data))
    if not damage:
        # Not fewer than those that ascend: a reader that takes none would agree with everything.
        last: dict[str, int] = {}
        count = 0
        for one in sends:
            if one.opaque <= last.get(one.ext["e"], -1):
                break
            last[one.ext["e"]] = one.opaque
            count += 1
        assert taken >= count


@given(st.binary(max_size=600))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with suppress(ProtocolError):
        check_against_reference(data)
