"""Binary command headers (docs/internals/protocol.md#binary-header), and frames from templates, on
each core.
"""

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordermq.core import reference
from ordermq.core.contract import FRAME_VALUES_MOST
from ordermq.errors import ProtocolError


def header(remark=b"", fields=(), *, code=14, language=3, version=479, opaque=7, flag=0):
    ext = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        for name, value in fields
    )
    head = struct.pack(">hBhii", code, language, version, opaque, flag)
    return head + struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(ext)) + ext


def test_every_member_is_read(core):
    fields = [(b"queueId", b"3"), ("主题".encode(), "值".encode()), (b"", b""), (b"queueId", b"4")]
    data = header("再".encode(), fields, code=-2, language=255, version=-1, opaque=-7, flag=1)
    assert core.read_header(data) == (
        -2, 255, -1, -7, 1, "再", {"queueId": "4", "主题": "值", "": ""},
    )  # fmt: skip
    assert core.read_header(header()) == (14, 3, 479, 7, 0, "", {})


FAULTS = {
    "empty": (b"", "byte 0: header is truncated"),
    "head cut": (header()[:12], "byte 12: header is truncated"),
    "no remark size": (header()[:16], "byte 16: header is truncated"),
    "no fields size": (header(b"abc")[:23], "byte 23: header is truncated"),
    "remark long": (header()[:13] + struct.pack(">ii", 5, 0), "byte 13: a remark of 5 bytes, 4"),
    "remark negative": (header()[:13] + struct.pack(">ii", -1, 0), "a remark of -1 bytes"),
    "remark no text": (header(b"\xff"), "byte 17: a text that is not UTF-8"),
    "fields short": (header() + b"x", "byte 17: 0 bytes of fields, 1 left"),
    "fields long": (header()[:17] + struct.pack(">i", 1), "byte 17: 1 bytes of fields, 0 left"),
    "fields negative": (header()[:17] + b"\xff" * 4, "byte 17: -1 bytes of fields, 0 left"),
    "name cut": (header()[:17] + struct.pack(">i", 1) + b"\0", "byte 22: header is truncated"),
    "name long": (header()[:17] + struct.pack(">ih", 2, 1), "byte 21: a field name of 1 bytes, 0"),
    "name negative": (header()[:17] + struct.pack(">ih", 2, -1), "a field name of -1 bytes"),
    "value cut": (header()[:17] + struct.pack(">ih", 2, 0), "byte 23: header is truncated"),
    "value long": (
        header()[:17] + struct.pack(">ihi", 6, 0, 2**31 - 1),
        "byte 23: a field value of 2147483647 bytes, 0 left",
    ),
    "value no text": (header(fields=[(b"a", b"\xc3")]), "byte 28: a text that is not UTF-8"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_malformed_header_is_named_with_its_place(core, case):
    data, what = FAULTS[case]
    with pytest.raises(ProtocolError, match=what):
        core.read_header(data)


def result(core, data):
    try:
        return core.read_header(data)
    except ProtocolError as error:
        return str(error)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9).map(str.encode)
headers = st.builds(
    header,
    texts,
    st.lists(st.tuples(texts, texts), max_size=4),
    code=st.integers(-(2**15), 2**15 - 1),
    language=st.integers(0, 255),
    version=st.integers(-(2**15), 2**15 - 1),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
)
damages = st.lists(
    st.tuples(st.integers(0, 80), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=3
)


@given(headers, damages, st.integers(0, 40))
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_headers_are_read_as_the_reference_reads_them(native_core, data, damages, cut):
    whole = result(native_core, data)
    assert whole == result(reference, data)
    assert isinstance(whole, tuple)
    damaged = bytearray(data)
    for at, value in damages:
        if at < len(damaged):
            damaged[at] = value
    damaged = bytes(damaged[: max(0, len(damaged) - cut // 2 * (cut % 2))])
    assert result(native_core, damaged) == result(reference, damaged)


# ---- frames from templates ----

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.lists(INT64 | st.text(max_size=40), max_size=FRAME_VALUES_MOST)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=VALUES, body=st.binary(max_size=300), data=st.data())
def test_a_frame_is_that_of_the_reference_and_of_json(core, values, body, data):
    count = len(values) + 1
    texts = data.draw(st.lists(st.binary(max_size=8), min_size=count, max_size=count))
    frame = core.FrameTemplate(texts).frame(tuple(values), body)
    assert frame == reference.FrameTemplate(texts).frame(tuple(values), body)
    header = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
    commas = [b"["] + [b","] * (len(values) - 1) + [b"]"] if values else [b"[]"]
    whole = core.FrameTemplate(commas).frame(tuple(values), body)
    assert whole == struct.pack(">iI", len(header) + 4 + len(body), len(header)) + header + body


def test_every_byte_of_a_text_is_escaped_as_json_wants_it(core):
    text = "".join(map(chr, range(256))) + "主题\U0001f600"
    header = core.FrameTemplate((b"", b"")).frame((text,), b"")[8:]
    assert header == json.dumps(text, ensure_ascii=False).encode()
    assert json.loads(header) == text


def test_a_template_has_a_value_for_each_gap(core):
    template = core.FrameTemplate((b"a", b"b", b"c"))
    for values in ((), (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match=rf"^{len(values)} values for a frame .* with 2 gaps"):
            template.frame(values, b"")
    for texts in ([], [b""] * (FRAME_VALUES_MOST + 2)):
        with pytest.raises(ValueError, match=rf"template of {len(texts)} texts: expected 1\.\.9"):
            core.FrameTemplate(texts)


def test_a_frame_that_no_peer_could_read_is_refused(core):
    template = core.FrameTemplate((b"", b""))
    longest = "x" * ((1 << 24) - 3)  # two quotes, and the header's size has three bytes
    assert len(template.frame((longest,), b"")) == 8 + (1 << 24) - 1
    with pytest.raises(ValueError, match="a frame with a body of 7 bytes"):
        template.frame((longest + "x",), b"7 bytes")
    with pytest.raises(UnicodeEncodeError):
        template.frame(("\ud800",), b"")
