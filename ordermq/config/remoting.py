"""Settings of connections and requests: time-outs, account, namespaces, TLS."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ordermq.config.address_map import AddressMap
from ordermq.config.checks import (
    DAY_MS,
    Flat,
    number,
    require_choice,
    require_flags,
    require_names,
    require_paths,
    require_ranges,
)
from ordermq.errors import ConfigError

SERIALIZE_TYPE_VARIABLE = "ROCKETMQ_SERIALIZE_TYPE"


class SerializeType(StrEnum):
    """Encoding of the headers that are sent; both are read at any time
    (docs/internals/protocol.md#framing).
    """

    JSON = "json"
    ROCKETMQ = "rocketmq"  # the binary form, shorter


class TlsVerify(StrEnum):
    """Checks of a server's certificate."""

    FULL = "full"  # signed by a trusted authority, and issued for the host of the address
    CA = "ca"  # signed by a trusted authority, for any host, as Java's client checks
    NONE = "none"  # no check: encrypted, but the server may be anybody's


def _serialize_type() -> SerializeType:
    """Return the type that the environment sets, as for RocketMQ's clients; JSON by default."""
    text = os.environ.get(SERIALIZE_TYPE_VARIABLE, "").strip()
    try:
        return SerializeType(text.lower() or SerializeType.JSON)
    except ValueError:
        raise ConfigError(
            f"{SERIALIZE_TYPE_VARIABLE}={text!r} in the environment: expected JSON or ROCKETMQ"
        ) from None


def _require_credentials(config: RemotingConfig) -> None:
    for name in ("access_key", "secret_key", "security_token"):
        # The value stays out of the message: it may be a secret that ends up in a log.
        if not isinstance(getattr(config, name), str):
            kind = type(getattr(config, name)).__name__
            raise ConfigError(f"RemotingConfig.{name}: expected a str, got {kind}")
    if bool(config.access_key) != bool(config.secret_key):
        missing = "secret_key" if config.access_key else "access_key"
        raise ConfigError(f"RemotingConfig.{missing} is missing: give both keys, or none")
    if config.security_token and not config.access_key:
        raise ConfigError("RemotingConfig.security_token needs access_key and secret_key, too")


class RemotingConfig(Flat, kw_only=True):
    """Connections and requests (docs/internals/protocol.md#time-outs)."""

    # Time to open a connection.
    connect_timeout_ms: int = number(3_000, 1, DAY_MS)
    # Time for the response to a route request, heartbeat or member list.
    request_timeout_ms: int = number(3_000, 1, DAY_MS)
    # Time for the response to a query or commit of an offset.
    offset_timeout_ms: int = number(5_000, 1, DAY_MS)
    # Time for the response to a lock or unlock request.
    lock_timeout_ms: int = number(1_000, 1, DAY_MS)
    # Pause after a failed connect, doubled after each further one up to 16 times.
    reconnect_delay_ms: int = number(200, 1, DAY_MS)
    # Longest frame in bytes; a longer one closes the connection.
    max_frame_bytes: int = number(16_777_216, 1_024, 1 << 30)
    # Compare each received body with the checksum that its broker stored with it.
    check_crcs: bool = True
    # Most bytes that a received body may become when it is decompressed; a longer one raises
    # DecodeError when it is read.
    max_decompressed_bytes: int = number(4_194_304, 1, 1 << 30)
    # Time between heartbeats to each broker.
    heartbeat_interval_ms: int = number(30_000, 10, DAY_MS)
    # Time between refreshes of the routes in use.
    route_interval_ms: int = number(30_000, 10, DAY_MS)
    # Time after which a broker that left all routes is no longer expected back.
    forget_broker_after_ms: int = number(60_000, 1, DAY_MS)
    # Reachable addresses of brokers, by those that the name servers tell: a dict, or as text
    # "10.0.0.5:10911=localhost:10911;10.0.0.6=gateway"; a host alone keeps the port, * is any host.
    address_map: Mapping[str, str] | str = ""
    # Account that signs the requests; empty: requests are not signed
    # (docs/internals/protocol.md#signed-requests).
    access_key: str = ""
    # Secret key of the account.
    secret_key: str = field(default="", repr=False)
    # Token of a temporary account; empty for others.
    security_token: str = field(default="", repr=False)
    # Namespace of RocketMQ 4: brokers see topics and groups as `namespace%name`.
    namespace: str = ""
    # Namespace of RocketMQ 5: sent with each request, next to plain names.
    namespace_v2: str = ""
    # Unit of a multi-unit deployment; part of the client id.
    unit_name: str = ""
    # Mark topics and retry topics that this client creates as belonging to units.
    unit_mode: bool = False
    # Encoding of request headers: "json" or "rocketmq"; default from ROCKETMQ_SERIALIZE_TYPE.
    serialize_type: SerializeType = field(default_factory=_serialize_type)
    # Address in the client id; empty: the local address on the way to the name server.
    client_ip: str = ""
    # Use TLS for all connections, to name servers and brokers.
    tls: bool = False
    # Checks of server certificates: "full", "ca" or "none".
    tls_verify: TlsVerify = TlsVerify.FULL
    # CA bundle (PEM) used to verify servers; empty: the authorities that the system trusts.
    tls_ca_file: str = ""
    # Client certificate (PEM) for mutual TLS; empty: none.
    tls_certificate: str = ""
    # Key (PEM) of tls_certificate; empty: it is in the same file.
    tls_key: str = ""

    def __post_init__(self) -> None:
        require_flags(self)
        _require_credentials(self)
        object.__setattr__(self, "address_map", AddressMap(self.address_map))
        require_names(self, "namespace", "namespace_v2", "unit_name")
        # The characters of an address: the client id is split at `@`, and names the folder of an
        # offset file.
        if not isinstance(self.client_ip, str) or not re.fullmatch(
            r"[a-zA-Z0-9_.:%-]*", self.client_ip
        ):
            raise ConfigError(f"client_ip={self.client_ip!r}: expected an address")
        require_choice(self, tls_verify=TlsVerify, serialize_type=SerializeType)
        require_paths(self, "tls_ca_file", "tls_certificate", "tls_key")
        # A file that has no effect is a mistake: its owner believes to be connected by TLS.
        for name in ("tls_ca_file", "tls_certificate", "tls_key"):
            if getattr(self, name) and not self.tls:
                raise ConfigError(f"RemotingConfig.{name} is given without tls=True")
        if self.tls_key and not self.tls_certificate:
            raise ConfigError("RemotingConfig.tls_key is given without tls_certificate")
        require_ranges(self)
