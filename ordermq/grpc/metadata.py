"""Metadata of calls: who the client is, and its signature."""

from __future__ import annotations

import datetime
import hmac
import secrets

from ordermq.config import RemotingConfig
from ordermq.version import VERSION

Metadata = list[tuple[str, str]]


def metadata_of(config: RemotingConfig, client_id: str, wall_ms: int) -> Metadata:
    """Return the metadata of one call.

    With an account the date is signed by HMAC-SHA1, as RocketMQ's gRPC clients do
    (docs/internals/protocol.md#grpc).

    Args: wall_ms: the present time, ms since 1970.
    """
    found = [
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", VERSION),
        ("x-mq-request-id", secrets.token_hex(8)),
    ]
    if config.namespace_v2:
        found.append(("x-mq-namespace", config.namespace_v2))
    if not config.access_key:
        return found
    moment = datetime.datetime.fromtimestamp(wall_ms / 1_000, datetime.UTC)
    date = moment.strftime("%Y%m%dT%H%M%SZ")
    signed = hmac.digest(config.secret_key.encode(), date.encode(), "sha1").hex().upper()
    credential = f"Credential={config.access_key}"
    found += [
        ("x-mq-date-time", date),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 {credential}, SignedHeaders=x-mq-date-time, Signature={signed}",
        ),
    ]
    if config.security_token:
        found.append(("x-mq-session-token", config.security_token))
    return found
