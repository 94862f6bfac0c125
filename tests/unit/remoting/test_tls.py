"""Messages of TLS libraries about a broken handshake, in plain words."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.remoting.tls import client_context, describe_tls_error, is_tls_record, server_context
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


def test_tls_records_are_distinguished_from_frames() -> None:
    assert is_tls_record(bytes.fromhex("15030300020246"))  # alert: protocol version
    assert is_tls_record(bytes.fromhex("160301"))
    assert not is_tls_record(bytes.fromhex("0000006000000058"))
