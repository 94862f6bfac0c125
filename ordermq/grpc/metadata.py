"""Metadata of calls: who the client is, and its signature."""

from __future__ import annotations

import datetime
import hmac
import itertools
import secrets

from ordermq.config import RemotingConfig
from ordermq.grpc.http2 import header_block
from ordermq.version import VERSION

_ID_DIGITS = 8
_LAST_ID = (1 << 4 * _ID_DIGITS) - 1  # the next one is 0 again


class CallMetadata:
    """The metadata of a client's calls, as blocks of headers."""

    def __init__(self, config: RemotingConfig, client_id: str) -> None:
        self._config = config
        self._client_id = client_id
        # Ids of calls: unique as those of others are by chance, which costs a system call each.
        self._id_prefix, self._ids = secrets.token_hex(6), itertools.count()
        self._second = -1
        self._block = b""  # of all calls of that second: only their ids differ

    def of_call(self, wall_ms: int) -> bytes:
        """Return the metadata of one call.

        Args: wall_ms: the present time, ms since 1970.
        """
        second = wall_ms // 1_000
        if second != self._second:
            shared = shared_metadata(self._config, self._client_id, wall_ms)
            # Without the digits of its own: the number of a call, whose field is the last one.
            call_id = "x-mq-request-id", f"{self._id_prefix}{0:0{_ID_DIGITS}x}"
            self._block = header_block([*shared, call_id])[:-_ID_DIGITS]
            self._second = second
        return b"%b%0*x" % (self._block, _ID_DIGITS, next(self._ids) & _LAST_ID)


def shared_metadata(config: RemotingConfig, client_id: str, wall_ms: int) -> list[tuple[str, str]]:
    """Return the metadata of all calls in the same second, without what tells them apart.

    With an account the date is signed by HMAC-SHA1, as RocketMQ's gRPC clients do
    (docs/internals/protocol.md#grpc).

    Args: wall_ms: the present time, ms since 1970.
    """
    found = [
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", VERSION),
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
