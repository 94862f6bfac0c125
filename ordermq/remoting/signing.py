"""Accounts: requests signed with a secret key, as RocketMQ's ACL requires
(docs/internals/protocol.md#signed-requests).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import field

from ordermq.remoting.command import Command
from ordermq.value import Value

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
# A broker that passes a request on to a client removes these: they are between it and the sender.
SIGNED_BY = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_SIGNS_IT_FROM = 400  # Java's clients before this version add that field after signing


class Credentials(Value):
    """Account of a client.

    Args:
        security_token: for temporary accounts; empty for none.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def sign(self, command: Command) -> None:
        """Add the account and the signature to a request; change nothing in it afterwards."""
        ext = dict(command.ext)  # the caller may send the same fields again after a failure
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = signature(ext, command.body, self.secret_key)
        command.ext = ext

    def signed_around(self, ext: Mapping[str, str], *fields: str) -> tuple[bytes, bytes, bytes]:
        """Return the key, and what is signed before and after the values of fields that follow each
        other in their order, of a request without a body."""
        names = sorted(ext.keys() - {SIGNATURE})
        at = names.index(fields[0])
        before = "".join(ext[each] for each in names[:at])
        after = "".join(ext[each] for each in names[at + len(fields) :])
        return self.secret_key.encode(), before.encode(), after.encode()

    def signer_around(self, ext: Mapping[str, str], *fields: str) -> FieldSigner:
        """Return the signer of requests that differ in these fields and in their body."""
        return FieldSigner(*self.signed_around(ext, *fields))


class FieldSigner:
    """Signatures of requests that differ in some values and their body; any thread.

    Args:
        before, after: what is signed before and after the values.
    """

    def __init__(self, key: bytes, before: bytes, after: bytes) -> None:
        self._begun = hmac.new(key, before, "sha1")
        self._after = after

    def signature(self, values: bytes, body: bytes) -> str:
        """Return the signature with these values, without anything between them."""
        mac = self._begun.copy()
        mac.update(b"".join((values, self._after, body)))
        return base64.b64encode(mac.digest()).decode()


def signature(
    ext: Mapping[str, str], body: bytes, secret_key: str, without: frozenset[str] = frozenset()
) -> str:
    """Return the signature: HMAC-SHA1 over the values sorted by name, then the body; in base64.

    Args:
        without: names of fields that are not signed; the signature itself never is.
    """
    # Values only, without names or separators: so it is defined, and peers compute the same.
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE and name not in without)
    mac = hmac.new(secret_key.encode(), values.encode(), "sha1")
    mac.update(body)
    return base64.b64encode(mac.digest()).decode()


def refusal_reason(command: Command, accounts: Mapping[str, str]) -> str | None:
    """Return the reason to refuse a received request, None if an account signed it.

    Args:
        accounts: secret keys by access key.
    """
    # Which of the two is wrong, key or signature, is no secret: access keys travel in the clear.
    access_key = command.ext.get(ACCESS_KEY)
    if not access_key:
        return "the request is not signed: this broker serves configured accounts only"
    secret_key = accounts.get(access_key)
    if secret_key is None:
        return f"no account has the access key {access_key!r}"
    unsigned = frozenset({_UNIQUE_KEY_QUERY}) if command.version < _SIGNS_IT_FROM else frozenset()
    expected = signature(command.ext, command.body, secret_key, unsigned)
    # In constant time: how many characters agree must not show in the time of the answer.
    if not hmac.compare_digest(expected.encode(), command.ext.get(SIGNATURE, "").encode()):
        return f"the signature does not match access key {access_key!r}: wrong secret key?"
    return None
