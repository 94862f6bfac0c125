"""Java's hash of a text (docs/internals/protocol.md#tags, V9), on each core."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordermq.core import reference


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2_598_919),
        ("订单", 1_129_459),
        ("😀x", 54_959_989),
        ("polygenelubricants", -2_147_483_648),
        ("a\0b", 31 * 31 * 97 + 98),
    ],
)
def test_a_text_is_hashed_as_java_does_over_utf_16(core, text, value):
    assert core.java_hash(text) == value


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_native_hashes_are_those_of_the_reference(native_core, text):
    assert native_core.java_hash(text) == reference.java_hash(text)


def test_a_surrogate_without_its_pair_is_refused(core):
    with pytest.raises(UnicodeEncodeError):
        core.java_hash("a\ud83d")


@pytest.mark.parametrize("text", [None, b"k", 1])
def test_what_is_no_text_is_refused(core, text):
    with pytest.raises((TypeError, AttributeError)):
        core.java_hash(text)
