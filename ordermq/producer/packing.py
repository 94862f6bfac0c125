"""Large bodies are compressed on their way out (docs/internals/protocol.md#system-flags)."""

from __future__ import annotations

import asyncio

from ordermq.config import SendConfig
from ordermq.core import compression


def is_packed(body: bytes, config: SendConfig) -> bool:
    """Whether `packed` compresses the body."""
    return len(body) >= config.compress_msg_body_over_howmuch


async def packed(body: bytes, config: SendConfig) -> tuple[bytes, int]:
    """The body as it goes to the broker, and the sysFlag that says so; kept even if larger."""
    if not is_packed(body, config):
        return body, 0
    # Not on the I/O thread: 4 MiB take it so long that leases would not be renewed in time.
    return await asyncio.to_thread(
        compression.compress, body, config.compress_type.value, config.compress_level
    )
