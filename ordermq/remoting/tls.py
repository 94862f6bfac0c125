"""TLS contexts from settings, and errors that name the setting to change
(docs/internals/protocol.md#tls).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ordermq.config import RemotingConfig, TlsVerify
from ordermq.errors import ConfigError
from ordermq.threads import Lock

if TYPE_CHECKING:
    from ordermq.config import BrokerConfig

_log = logging.getLogger("ordermq.client")

SHUTDOWN_TIMEOUT_S = 1.0  # for the peer's close_notify; asyncio's 30 s would delay each close
_NOT_VALID_NOW = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, _CERT_HAS_EXPIRED of OpenSSL
_HOSTNAME_MISMATCH = 62  # X509_V_ERR_HOSTNAME_MISMATCH
_ADDRESS_MISMATCH = 64  # X509_V_ERR_IP_ADDRESS_MISMATCH
_RECORD_HEADS = (b"\x15\x03", b"\x16\x03")  # alert and handshake records; no frame starts like this
# With those of TLS 1.3: change of ciphers, and enciphered handshake.
_HANDSHAKE_HEADS = (*_RECORD_HEADS, b"\x14\x03", b"\x17\x03")
_RECORD_HEAD_BYTES = 5  # type, version, size
_PLAIN_BYTES = 1 << 14  # the most that one record holds, deciphered

_FileLook = tuple[int, int, int, int] | None  # device, inode, size, change; None: cannot be seen


def client_context(config: RemotingConfig) -> ssl.SSLContext | None:
    """Return the context of a client, None without TLS.

    Raises: ConfigError: a certificate or key file cannot be used.
    """
    if not config.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Before verify_mode: ssl refuses CERT_NONE while the host is checked.
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
    """Return the context of the embedded broker, None without TLS.

    Raises: ConfigError: a certificate or key file cannot be used.
    """
    if not config.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _present(context, config.tls_certificate, config.tls_key)
    if config.tls_client_ca_file:
        # In this order: an unreadable bundle must not leave a context that accepts everybody.
        _trust(context, "tls_client_ca_file", config.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class RenewedContext:
    """The TLS context of some settings, made anew once one of its files has changed.

    Certificates are renewed under running programs. One that kept its first certificate for ever
    would be refused at its next connect once that has expired, until somebody restarts it.

    Args:
        make: makes the context, None without TLS.
        files: what it reads.
        log: gets a warning when the files cannot be used any more.
    """

    def __init__(
        self, make: Callable[[], ssl.SSLContext | None], files: Iterable[str], log: logging.Logger
    ) -> None:
        self._make = make
        self._files = [file for file in files if file]
        self._log = log
        self._context: ssl.SSLContext | None = None
        self._is_made = False
        self._looks: list[_FileLook] = []  # at the files that the context was made of
        self._told: list[_FileLook] = []

    def current(self) -> ssl.SSLContext | None:
        """Return the context of the next connection; None without TLS.

        Files that cannot be used any more leave the last context in use: they may be half written.

        Raises: ConfigError: a file cannot be used, and none could before.
        """
        # Before they are read: what changes meanwhile is noticed at the next connection.
        looks = [_look_at(file) for file in self._files]
        if self._is_made and looks == self._looks:
            return self._context
        try:
            self._context = self._make()
        except ConfigError as error:
            if not self._is_made:
                raise
            if looks != self._told:
                self._told = looks
                self._log.warning(
                    "TLS files have changed and cannot be used; the last ones that could stay in "
                    "use: reason=%s", error,
                )  # fmt: skip
        else:
            if self._is_made:
                self._log.info("TLS files have changed and are used from now on")
            self._is_made, self._looks, self._told = True, looks, []
        return self._context


def renewed_client_context(config: RemotingConfig) -> RenewedContext:
    """Return the contexts of a client's connections."""
    files = (config.tls_ca_file, config.tls_certificate, config.tls_key) if config.tls else ()
    return RenewedContext(partial(client_context, config), files, _log)


def renewed_server_context(config: BrokerConfig, log: logging.Logger) -> RenewedContext:
    """Return the contexts of the connections that an embedded broker accepts."""
    files = (config.tls_certificate, config.tls_key, config.tls_client_ca_file)
    return RenewedContext(partial(server_context, config), files, log)


def _look_at(file: str) -> _FileLook:
    # Behind links: whole folders are exchanged by one that points elsewhere.
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class TlsSession:
    """TLS of a client over buffers, for whoever reads and writes the socket.

    The pull engine uses its parts, on one thread, and a `FrameStream` those that read.

    Attributes: see the contract `Tls`.
    """

    wants_more = ssl.SSLWantReadError
    ended = ssl.SSLZeroReturnError
    failed = ssl.SSLError

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)
        # Those of `ssl_object` are Python code around these: an exception of a signal handler, or
        # one that was sent to a thread, could come behind a read, which would lose what was read.
        native = getattr(self.ssl_object, "_sslobj")  # noqa: B009 - not in typeshed
        self.read: Callable[..., Any] = native.read
        self.write: Callable[..., int] = native.write
        # OpenSSL's calls give up the interpreter lock, and one session must not be in two of them.
        self.lock = Lock()

    async def shake_hands(self, opened: socket.socket) -> None:
        """Agree on keys through a non-blocking socket; read no byte behind the handshake.

        Raises: OSError, ssl.SSLError: see `describe_tls_error`.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.ssl_object.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            except ssl.SSLError:
                # The alert tells the server why.
                await loop.sock_sendall(opened, self.outgoing.read())
                raise
            if self.outgoing.pending:
                await loop.sock_sendall(opened, self.outgoing.read())
            if is_done:
                return
            head = await _received(opened, _RECORD_HEAD_BYTES)
            # A server without TLS sends anything: OpenSSL says so by the head alone.
            size = int.from_bytes(head[3:]) if head[:2] in _HANDSHAKE_HEADS else 0
            self.incoming.write(head + await _received(opened, size))

    def encipher(self, data: bytes) -> bytes:
        """Return the records of some bytes; they must be sent, and in the order of the calls.

        What the session answers by itself, as to a change of keys, is in front of them.

        Raises: ssl.SSLError: the session is broken.
        """
        with self.lock:
            return self._encipher(data)

    # On the I/O thread, which waits for no other one: a signal handler may have suspended it.

    def encipher_soon(self, data: bytes, patience_s: float) -> bytes | None:
        """As `encipher`; None: another thread is in the session all that time."""
        if not self.lock.acquire(timeout=patience_s):
            return None
        try:
            return self._encipher(data)
        finally:
            self.lock.release()

    def decipher(self, received: bytes, patience_s: float) -> tuple[bytes, bool] | None:
        """Return the bytes of the peer's program that are whole with these, and whether it has
        ended the session.

        Returns: None: another thread is in the session all that time; nothing was taken.
        Raises: ssl.SSLError: the session is broken, perhaps by an alert of the peer.
        """
        if not self.lock.acquire(timeout=patience_s):
            return None
        try:
            self.incoming.write(received)
            return self._read_all()
        finally:
            self.lock.release()

    def close_notify(self) -> bytes:
        """Return the record that tells the peer of the end; empty if the session is broken, or
        another thread is in it.
        """
        if not self.lock.acquire(blocking=False):
            return b""
        try:
            # It wants the peer's own record, for which nobody waits, or the session is broken.
            with contextlib.suppress(ssl.SSLError, OSError, ValueError):
                self.ssl_object.unwrap()
            return self.outgoing.read()
        finally:
            self.lock.release()

    # With the lock.

    def _encipher(self, data: bytes) -> bytes:
        write, left = self.write, memoryview(data)
        while left:
            left = left[write(left) :]
        return self.outgoing.read()

    def _read_all(self) -> tuple[bytes, bool]:
        read = self.read
        found: list[bytes] = []
        # Asked for before each read: one that finds nothing costs an exception.
        while self.incoming.pending or self.ssl_object.pending():
            try:
                data = read(_PLAIN_BYTES)
            except ssl.SSLWantReadError:
                break  # records of the session's own, or the first part of one
            except ssl.SSLZeroReturnError:
                data = b""
            if not data:
                return b"".join(found), True
            found.append(data)
        return found[0] if len(found) == 1 else b"".join(found), False


async def _received(opened: socket.socket, size: int) -> bytes:
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < size:
        data = await loop.sock_recv(opened, size - len(found))
        if not data:
            raise ConnectionResetError("the server ended the connection in the handshake")
        found += data
    return found


def is_tls_record(data: bytes) -> bool:
    """Return True if the first bytes of a server are TLS instead of a plain frame."""
    return data[:2] in _RECORD_HEADS


def describe_tls_error(error: BaseException, host: str) -> str:
    """Return the reason for a failed TLS connection to `host`, and the setting to change."""
    # OpenSSL reports errors by code and by words of its C names; there is no finer class in Python.
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
            return (
                f"the server's certificate is not for the host {host} ({why}): connect by a "
                "name in the certificate, or give tls_verify='ca' to skip the host check"
            )
        if error.verify_code in _NOT_VALID_NOW:
            return (
                f"the server's certificate is not valid now ({why}): renew it at the server, or "
                "set the clock of the machine that is wrong"
            )
        return (
            f"the server's certificate is not trusted ({why}): give tls_ca_file= with the CA "
            "bundle that verifies it, or tls_verify='none' in a private network"
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    # The first one on either side, of an alert; the other one of OpenSSL 3.6.
    if "BAD_RECORD_MAC" in reason or "RECORD_LAYER_FAILURE" in reason:
        return (
            f"a TLS record arrived damaged ({reason}): something between here and the server "
            "changes bytes; the connection is made anew"
        )
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            f"the server refused the connection ({reason}): if it requires a client certificate, "
            "give tls_certificate= and tls_key="
        )
    if "ALERT" in reason and "CERTIFICATE_EXPIRED" in reason:
        return (
            f"the server refused the client certificate ({reason}): renew the files of "
            "tls_certificate= and tls_key=, which each new connection looks at"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "CA" in reason):
        return (
            f"the server refused the client certificate ({reason}): tls_certificate= must be "
            "signed by an authority that the server trusts"
        )
    return (
        f"TLS handshake failed ({str(error) or type(error).__name__}): check that the server "
        "speaks TLS on this port; tls=False connects without"
    )


def hint_for_silence(config: RemotingConfig) -> str:
    """Return the likely reason why a server closes a connection without sending a byte."""
    if not config.tls:
        return "does it require TLS (tls=True)?"
    if not config.tls_certificate:
        return "does it require a client certificate (tls_certificate=, tls_key=)?"
    return "does it trust the authority that signed tls_certificate, and is it still valid?"


def _trust(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{name}={path!r} cannot be used ({error}): expected certificates in PEM"
        ) from error


def _present(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        # The empty password refuses a key with a passphrase. Without it OpenSSL would ask for one
        # on the terminal, in the middle of a service.
        context.load_cert_chain(certificate, key or None, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_certificate={certificate!r}, tls_key={key!r} cannot be used ({error}): expected "
            "a certificate chain and its key in PEM, without a passphrase"
        ) from error
