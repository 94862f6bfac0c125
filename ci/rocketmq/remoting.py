"""One request of the remoting protocol over a new connection
(docs/internals/protocol.md#framing)."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

REQUEST_TIMEOUT_S = 2.0
CLUSTER_INFO, ROUTE, RUNTIME_INFO = 106, 105, 28  # request codes


def request(address: str, code: int, **fields: str) -> tuple[int, bytes]:
    """Return the response code and body of a request; OSError without an answer."""
    host, port = address.rsplit(":", 1)
    header = json.dumps({"code": code, "extFields": fields, "opaque": 1, "version": 479}).encode()
    with socket.create_connection((host, int(port)), REQUEST_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as stream:
            size, mark = struct.unpack(">iI", exactly(stream, 8))
            answer = exactly(stream, mark & 0xFFFFFF)
            binary = mark >> 24 == 1
            code = struct.unpack_from(">h", answer)[0] if binary else json.loads(answer)["code"]
            return int(code), exactly(stream, size - 4 - len(answer))


def exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the connection was closed within an answer")
    return data
