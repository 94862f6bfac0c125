"""Requests signed with an account's secret key, as RocketMQ's ACL asks for
(docs/internals/protocol.md#signed-requests)."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from ordermq.config import RemotingConfig
from ordermq.remoting.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
SIGNED_BY = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_SIGNS_IT_FROM = 400  # Java's clients up to this version added that field after they had signed


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account as a client knows it.

    Args:
        security_token: of a temporary account; empty for none.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    @classmethod
    def of(cls, config: RemotingConfig) -> Credentials | None:
        """What the settings say; None if requests go unsigned."""
        if not config.access_key:
            return None
        return cls(config.access_key, config.secret_key, config.security_token)

    def sign(self, command: Command) -> None:
        """Add the account and the signature; nothing in `ext` or `body` may change after it."""
        ext = dict(command.ext)
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = signature(ext, command.body, self.secret_key)
        command.ext = ext


def signature(
    ext: Mapping[str, str], body: bytes, secret_key: str, without: frozenset[str] = frozenset()
) -> str:
    """HMAC-SHA1 over the values in the order of their names, then the body; base64.

    Args:
        without: names of fields that were not signed; the signature itself never is.
    """
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE and name not in without)
    mac = hmac.new(secret_key.encode(), values.encode(), "sha1")
    mac.update(body)
    return base64.b64encode(mac.digest()).decode()


def refusal_of(command: Command, accounts: Mapping[str, str]) -> str | None:
    """Why a received request is not to be served; None if an account signed it.

    Args:
        accounts: access key -> secret key.
    """
    access_key = command.ext.get(ACCESS_KEY)
    if not access_key:
        return "the request is not signed: this broker serves its accounts only"
    secret_key = accounts.get(access_key)
    if secret_key is None:
        return f"no account has the access key {access_key!r}"
    late = frozenset({_UNIQUE_KEY_QUERY}) if command.version < _SIGNS_IT_FROM else frozenset()
    wanted = signature(command.ext, command.body, secret_key, late)
    if not hmac.compare_digest(wanted.encode(), command.ext.get(SIGNATURE, "").encode()):
        return f"the signature is not that of the access key {access_key!r}: wrong secret key?"
    return None
