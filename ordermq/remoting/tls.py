"""TLS: certificates from settings, and what goes wrong with them in plain words
(docs/internals/protocol.md#tls)."""

from __future__ import annotations

import ssl

from ordermq.config import BrokerConfig, RemotingConfig, TlsVerify
from ordermq.errors import ConfigError

SHUTDOWN_TIMEOUT_S = 1.0  # for the peer's farewell; asyncio's own 30 s would hold a close so long
_HOSTNAME_MISMATCH = 62  # of OpenSSL's X509_V_ERR_...; the next is the same for addresses
_ADDRESS_MISMATCH = 64
_RECORD_HEADS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake; no frame begins so


def client_context(config: RemotingConfig) -> ssl.SSLContext | None:
    """What a client connects with; None if it does without TLS.

    Raises: ConfigError: a file of the settings cannot be used.
    """
    if not config.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.tls_verify is TlsVerify.FULL
    if config.tls_verify is TlsVerify.NONE:
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_ca_file:
        _trust(context, "tls_ca_file", config.tls_ca_file)
    else:
        context.load_default_certs()
    if config.tls_certificate:
        _present(context, config.tls_certificate, config.tls_key)
    return context


def server_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """What the embedded broker listens with; None if it does without TLS.

    Raises: ConfigError: a file of the settings cannot be used.
    """
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _present(context, config.tls_certificate, config.tls_key)
    if config.tls_client_ca_file:
        _trust(context, "tls_client_ca_file", config.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def is_record(data: bytes) -> bool:
    """Whether a server's first bytes are TLS where plain frames were expected."""
    return data[:2] in _RECORD_HEADS


def words_for(error: BaseException, host: str) -> str:
    """What a failed or broken TLS connection to `host` means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
            return (
                f"the server's certificate is not for the host {host} ({why}): connect by a name "
                "it holds, or give tls_verify='ca' to do without that check"
            )
        return (
            f"the server's certificate is not trusted ({why}): give tls_ca_file= of who signed "
            "it, or tls_verify='none' where nobody can listen in"
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            f"the server refused us ({reason}): does it want a client certificate? "
            "give tls_certificate= and tls_key="
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "CA" in reason):
        return (
            f"the server refused our certificate ({reason}): tls_certificate= must be signed by "
            "an authority that the server trusts"
        )
    return (
        f"no TLS connection ({str(error) or type(error).__name__}): does the server speak TLS "
        "there? tls=False connects without"
    )


def words_for_silence(config: RemotingConfig) -> str:
    """What it may mean that a server takes a connection and ends it without a byte."""
    if not config.tls:
        return "does it want TLS (tls=True)?"
    if not config.tls_certificate:
        return "does it want a client certificate (tls_certificate=, tls_key=)?"
    return "does it trust the authority that signed tls_certificate?"


def _trust(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{name}={path!r} cannot be used ({error}): expected certificates in PEM"
        ) from error


def _present(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        # A key with a passphrase is refused: nobody is there who could be asked for it.
        context.load_cert_chain(certificate, key or None, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_certificate={certificate!r}, tls_key={key!r} cannot be used ({error}): expected "
            "a certificate chain and its key in PEM, without a passphrase"
        ) from error
