"""Signed requests (docs/internals/protocol.md#signed-requests, V10; the signatures are of Java's
AclClientRPCHook, 5.3.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ordermq.config import RemotingConfig
from ordermq.remoting.command import Command
from ordermq.remoting.signing import Credentials, refusal_reason

PLAIN = Credentials("ak", "sk-secret")
ODD = Credentials("account-订单", "schlüssel", "token-1")
CONFIG = RemotingConfig(
    access_key=ODD.access_key, secret_key=ODD.secret_key, security_token=ODD.security_token
)
ODD_EXT = {"a": "p", "b": "订单", "i": "TAGS\x01x\x02", "Z": "upper", "_u": "under", "nsd": "true"}


@pytest.mark.parametrize(
    ("credentials", "ext", "body", "wanted"),
    [
        (PLAIN, {"topic": "TopicOrd"}, b"", "wWGnlh94p8XK5n5ceau1LlxUNmo="),
        (PLAIN, {}, b'{"x":1}', "peZWvMm+RIgqPw6A548EGd3aRyE="),
        (ODD, ODD_EXT, "body 😀".encode(), "nTDsmVSAAoSzI3yEuLzkn2SIgH8="),
    ],
)
def test_a_signature_equals_javas(
    credentials: Credentials, ext: dict[str, str], body: bytes, wanted: str
) -> None:
    command = Command.request(310, ext, body)
    credentials.sign(command)
    added = {"AccessKey": credentials.access_key, "Signature": wanted}
    if credentials.security_token:
        added["SecurityToken"] = credentials.security_token
    assert command.ext == ext | added


def test_a_request_signed_again_has_the_same_signature() -> None:
    command = Command.request(310, {"topic": "t"}, b"x")
    PLAIN.sign(command)
    once = dict(command.ext)
    PLAIN.sign(command)
    assert command.ext == once


def test_only_requests_signed_by_an_account_are_served() -> None:
    accounts = {"ak": "sk-secret"}
    command = Command.request(310, {"topic": "t"}, b"x")
    assert "not signed" in str(refusal_reason(command, accounts))
    PLAIN.sign(command)
    assert refusal_reason(command, accounts) is None
    assert "no account" in str(refusal_reason(command, {"other": "sk-secret"}))
    assert "wrong secret key" in str(refusal_reason(command, {"ak": "guess"}))
    changed = [
        replace(command, body=b"y"),
        replace(command, ext=command.ext | {"topic": "u"}),
        replace(command, ext=command.ext | {"more": "1"}),
        replace(command, ext=command.ext | {"Signature": ""}),
        replace(command, ext=command.ext | {"Signature": "☃"}),
    ]
    assert all(refusal_reason(one, accounts) for one in changed)


def test_a_field_that_old_clients_add_after_signing_is_ignored() -> None:
    command = Command.request(12, {"topic": "t"})
    PLAIN.sign(command)
    command.ext = command.ext | {"_UNIQUE_KEY_QUERY": "true"}
    for version, served in ((399, True), (400, False)):
        command.version = version
        assert (refusal_reason(command, {"ak": "sk-secret"}) is None) is served


def test_a_secret_key_is_not_shown() -> None:
    for shown in (repr(ODD), repr(CONFIG)):
        assert ODD.access_key in shown
        assert ODD.secret_key not in shown
        assert ODD.security_token not in shown
