"""Messages of TLS libraries about a broken handshake, in plain words."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.remoting.tls import (
    TlsSession,
    client_context,
    describe_tls_error,
    is_tls_record,
    server_context,
)
from tests.component.certificates import Authority


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


def failure(client: RemotingConfig, server: BrokerConfig) -> ssl.SSLError:
    """Error that the client's library raises when the two meet."""
    client_tls, server_tls = client_context(client), server_context(server)
    assert client_tls is not None
    assert server_tls is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client_tls.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = server_tls.wrap_bio(to_server, to_client, server_side=True)
    steps = [theirs.do_handshake, ours.do_handshake, lambda: ours.read(1)]
    for _ in range(6):
        for step in steps:
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if step is not steps[0]:
                    return error
    raise AssertionError("the two agreed")


def test_an_alert_for_a_missing_client_certificate_is_recognized(folder: Path) -> None:
    authority = Authority(folder, "authority")
    made = authority.sign("server")
    server = BrokerConfig(
        tls_certificate=made.certificate, tls_key=made.key, tls_client_ca_file=authority.file
    )
    trusting = {"tls": True, "tls_ca_file": authority.file}
    error = failure(RemotingConfig(**trusting), server)
    assert "give tls_certificate= and tls_key=" in describe_tls_error(error, "127.0.0.1")
    foreign = Authority(folder, "foreign").sign("foreigner")
    config = RemotingConfig(tls_certificate=foreign.certificate, tls_key=foreign.key, **trusting)
    error = failure(config, server)
    assert "an authority that the server trusts" in describe_tls_error(error, "127.0.0.1")


def test_a_session_takes_records_in_pieces_and_tells_their_end(folder: Path) -> None:
    made = Authority(folder, "pieces").sign("server")
    server_tls = server_context(BrokerConfig(tls_certificate=made.certificate, tls_key=made.key))
    client_tls = client_context(RemotingConfig(tls=True, tls_verify="none"))
    assert server_tls is not None
    assert client_tls is not None
    session = TlsSession(client_tls, "127.0.0.1")
    theirs = server_tls.wrap_bio(session.outgoing, session.incoming, server_side=True)
    for step in (session.ssl_object.do_handshake, theirs.do_handshake) * 2:
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
    # From here on each has buffers of its own.
    session.outgoing.write(session.encipher(b"a" * 40_000))
    got = b""
    while len(got) < 40_000:
        got += theirs.read(40_000)
    assert got == b"a" * 40_000
    theirs.write(b"b" * 10_000)
    records = session.incoming.read()
    found = [session.decipher(records[at : at + 999], 0) for at in range(0, len(records), 999)]
    assert b"".join(each[0] for each in found if each) == b"b" * 10_000
    theirs.write(b"last")
    with contextlib.suppress(ssl.SSLWantReadError):
        theirs.unwrap()
    assert session.decipher(session.incoming.read(), 0) == (b"last", True)
    with session.lock:  # as a thread has it that enciphers
        assert session.decipher(b"", 0) is None


@pytest.mark.parametrize(
    "reason",
    ["DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "SSLV3_ALERT_BAD_RECORD_MAC", "RECORD_LAYER_FAILURE"],
)
def test_a_damaged_record_is_told_by_each_name_that_openssl_has_for_it(reason: str) -> None:
    error = ssl.SSLError(1, f"[SSL: {reason}] failed")
    error.reason = reason
    assert "a TLS record arrived damaged" in describe_tls_error(error, "127.0.0.1")


def test_tls_records_are_distinguished_from_frames() -> None:
    assert is_tls_record(bytes.fromhex("15030300020246"))  # alert: protocol version
    assert is_tls_record(bytes.fromhex("160301"))
    assert not is_tls_record(bytes.fromhex("0000006000000058"))
