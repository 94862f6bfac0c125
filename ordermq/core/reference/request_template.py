"""A request template in plain Python: each frame is put together from its texts."""

from __future__ import annotations

import base64
import hmac
import struct

from ordermq.core import status
from ordermq.core.contract import REQUEST_GAPS_MOST
from ordermq.core.streams import RequestGap


class RequestTemplate:
    """See contract.RequestTemplate."""

    def __init__(
        self,
        texts: tuple[bytes, ...],
        gaps: tuple[RequestGap, ...],
        is_binary: bool,
        signing: tuple[bytes, bytes, bytes] | None,
    ) -> None:
        if len(texts) != len(gaps) + 1 or len(gaps) > REQUEST_GAPS_MOST:
            raise status.texts_of_request(len(texts), len(gaps), REQUEST_GAPS_MOST)
        self._texts, self._gaps = texts, gaps
        self._is_binary, self._signing = is_binary, signing

    def frame(self, offset: int, request_id: int) -> bytes:
        digits = str(offset).encode()
        # The size of the fields is known last, so the texts behind that gap are written first.
        header = b""
        for gap, text in zip(reversed(self._gaps), reversed(self._texts), strict=False):
            header = self._filled(gap, digits, request_id, text + header) + text + header
        header = self._texts[0] + header
        mark = self._is_binary << 24 | len(header)
        return struct.pack(">iI", len(header) + 4, mark) + header

    def _filled(self, gap: int, digits: bytes, request_id: int, rest: bytes) -> bytes:
        """Return what is written in a gap; `rest` is the header behind it."""
        is_binary = self._is_binary
        if gap == RequestGap.OFFSET:
            return struct.pack(">i", len(digits)) + digits if is_binary else digits
        if gap == RequestGap.REQUEST_ID:
            return struct.pack(">i", request_id) if is_binary else str(request_id).encode()
        if gap == RequestGap.FIELDS_SIZE:
            return struct.pack(">i", len(rest))
        assert self._signing is not None
        key, before, after = self._signing
        return base64.b64encode(hmac.digest(key, before + digits + after, "sha1"))
