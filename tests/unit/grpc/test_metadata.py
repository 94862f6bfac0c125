"""Metadata of calls."""

from __future__ import annotations

from ordermq.config import RemotingConfig
from ordermq.grpc.http2 import header_block
from ordermq.grpc.metadata import CallMetadata, shared_metadata

NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def test_a_call_names_its_client_and_is_not_signed_without_an_account() -> None:
    found = dict(shared_metadata(RemotingConfig(), "10.0.0.1@a", NEW_YEAR_MS))
    assert found["x-mq-client-id"] == "10.0.0.1@a"
    assert found["x-mq-protocol"] == "v2"
    assert "authorization" not in found
    assert "x-mq-namespace" not in found


def test_an_account_signs_the_date() -> None:
    config = RemotingConfig(
        access_key="reader", secret_key="12345678", security_token="t", namespace_v2="shop"
    )
    found = dict(shared_metadata(config, "10.0.0.1@a", NEW_YEAR_MS))
    assert found["x-mq-date-time"] == "20260101T000000Z"
    # printf 20260101T000000Z | openssl dgst -sha1 -hmac 12345678
    assert found["authorization"] == (
        "MQv2-HMAC-SHA1 Credential=reader, SignedHeaders=x-mq-date-time, "
        "Signature=744D438196AF86606D44B8C9A7C8E0E0B2FFB22B"
    )
    assert found["x-mq-session-token"] == "t"
    assert found["x-mq-namespace"] == "shop"


def test_calls_of_a_client_have_ids_of_their_own_and_a_date_that_goes_on() -> None:
    config = RemotingConfig(access_key="reader", secret_key="12345678")
    metadata = CallMetadata(config, "10.0.0.1@a")
    calls = [metadata.of_call(NEW_YEAR_MS + ms) for ms in (0, 999, 1_000)]
    for call, date in zip(calls, ("000000Z", "000000Z", "000001Z"), strict=True):
        assert f"20260101T{date}".encode() in call
    shared = header_block(shared_metadata(config, "10.0.0.1@a", NEW_YEAR_MS))
    assert calls[1].startswith(shared)
    assert len({call[call.index(b"x-mq-request-id") :] for call in calls}) == 3
