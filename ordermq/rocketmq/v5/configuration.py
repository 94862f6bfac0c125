"""Settings of every client: the endpoints of proxies, and an account."""

from __future__ import annotations

from typing import Any

from ordermq.rocketmq.v5.exception import IllegalArgumentException

_SCHEMES = ("grpc://", "http://", "https://")


class Credentials:
    """An account; empty: none."""

    def __init__(self, ak: str | None = "", sk: str | None = "") -> None:
        self.ak = ak or ""
        self.sk = sk or ""


class ClientConfiguration:
    """Settings of every client.

    Args:
        endpoints: `host:port` of a proxy, several joined by `;`.
        request_timeout: of one request, in seconds.
    Raises: IllegalArgumentException: there is no endpoint.
    """

    def __init__(
        self,
        endpoints: str,
        credentials: Credentials,
        namespace: str = "",
        request_timeout: float = 3,
    ) -> None:
        places = [_without_scheme(each.strip()) for each in endpoints.split(";")]
        self._places = [place for place in places if place]
        if not self._places:
            raise IllegalArgumentException(f"endpoints={endpoints!r}: expected host:port")
        self.credentials = credentials
        self.namespace = namespace
        self.request_timeout = request_timeout

    def settings(self, *, tls: bool) -> dict[str, Any]:
        """Return the arguments that every client of ordermq accepts."""
        found: dict[str, Any] = {
            "name_servers": [f"grpc://{place}" for place in self._places],
            "request_timeout_ms": round(self.request_timeout * 1_000),
            "tls": tls,
        }
        if self.credentials.ak:
            found |= {"access_key": self.credentials.ak, "secret_key": self.credentials.sk}
        if self.namespace:
            found["namespace_v2"] = self.namespace
        return found


def _without_scheme(endpoint: str) -> str:
    for scheme in _SCHEMES:
        endpoint = endpoint.removeprefix(scheme)
    return endpoint
