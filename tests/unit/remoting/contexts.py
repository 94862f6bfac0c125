"""Contexts of TLS whose two sides trust each other."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ordermq.config import BrokerConfig, RemotingConfig
from ordermq.remoting.tls import client_context, server_context
from tests.component.certificates import Authority, Certificate


@dataclass(frozen=True, slots=True)
class Contexts:
    """The two sides of a connection, and what the server shows."""

    server: ssl.SSLContext
    authority: str
    certificate: Certificate

    def client_up_to(self, newest: ssl.TLSVersion) -> ssl.SSLContext:
        """Return a new context of a client that speaks no newer TLS."""
        context = client_context(RemotingConfig(tls=True, tls_ca_file=self.authority))
        assert context is not None
        context.maximum_version = newest
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return self.client_up_to(ssl.TLSVersion.TLSv1_3)


def made_in(folder: Path) -> Contexts:
    """Make them; the files go into the folder."""
    authority = Authority(folder, "authority")
    shown = authority.sign("server")
    server = server_context(BrokerConfig(tls_certificate=shown.certificate, tls_key=shown.key))
    assert server is not None
    return Contexts(server, authority.file, shown)
