"""Request templates on each core: frames that differ in offset, request id, and signature."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ordermq.core import reference
from ordermq.core.contract import REQUEST_GAPS_MOST
from ordermq.core.streams import RequestGap

BYTES = st.binary(max_size=200)  # keys and signed texts of none, one and several blocks of 64
PLANS = st.lists(st.sampled_from(RequestGap), max_size=REQUEST_GAPS_MOST, unique=True).flatmap(
    lambda gaps: st.tuples(
        st.lists(st.binary(max_size=9), min_size=len(gaps) + 1, max_size=len(gaps) + 1).map(tuple),
        st.just(tuple(gaps)),
        st.booleans(),
        st.tuples(BYTES, BYTES, BYTES),
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plan=PLANS, offset=st.integers(0, (1 << 63) - 1), request_id=st.integers(0, (1 << 31) - 1))
def test_a_frame_is_that_of_the_reference(core, plan, offset, request_id):
    frame = core.RequestTemplate(*plan).frame(offset, request_id)
    assert frame == reference.RequestTemplate(*plan).frame(offset, request_id)


@pytest.mark.parametrize("size", [0, 1, 19, 20, 55, 56, 63, 64, 65, 119, 120, 128, 1_000])
def test_a_signature_is_the_hmac_of_the_signed_bytes(core, size):
    key, before, after = b"k" * size, bytes(range(256)) * (size // 64), b"x" * size
    signing = key, before, after
    template = core.RequestTemplate((b"", b""), (RequestGap.SIGNATURE,), False, signing)
    expected = hmac.new(key, before + b"1234" + after, hashlib.sha1).digest()
    assert template.frame(1_234, 1)[8:] == base64.b64encode(expected)


def test_a_template_has_one_text_more_than_gaps_and_few_gaps(core):
    gap = RequestGap.OFFSET
    for texts, gaps in [(1, 1), (3, 1), (REQUEST_GAPS_MOST + 2, REQUEST_GAPS_MOST + 1)]:
        with pytest.raises(ValueError, match=rf"^request template of {texts} texts, {gaps} gaps: "):
            core.RequestTemplate((b"",) * texts, (gap,) * gaps, False, None)
