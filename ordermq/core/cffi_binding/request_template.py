"""The request template through cffi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ordermq.core import status
from ordermq.core._cffi import ffi, lib
from ordermq.core.contract import REQUEST_GAPS_MOST

if TYPE_CHECKING:
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
        # The structs hold bare pointers: these names keep the bytes alive for the call.
        held = [ffi.from_buffer("uint8_t[]", text) for text in (*texts, *(signing or ()))]
        sized = [(text, len(text)) for text in held]
        places = ffi.new("omq_text[]", sized[: len(texts)])
        kinds = ffi.from_buffer("uint8_t[]", bytes(gaps))
        wanted = ffi.new("omq_request_plan *")
        wanted.texts, wanted.gaps, wanted.gap_count = places, kinds, len(gaps)
        wanted.is_binary, wanted.is_signed = is_binary, signing is not None
        if signing is not None:
            wanted.secret_key, wanted.signed_before, wanted.signed_after = sized[len(texts) :]
        made = lib.omq_request_template_new(wanted)
        if made == ffi.NULL:
            raise MemoryError("no memory for a request template")
        self._template = ffi.gc(made, lib.omq_request_template_free)
        self._most = lib.omq_request_template_most(made)

    def frame(self, offset: int, request_id: int) -> bytes:
        frame = ffi.new("uint8_t[]", self._most)
        size = lib.omq_request_template_write(self._template, offset, request_id, frame)
        return bytes(ffi.buffer(frame, size))
