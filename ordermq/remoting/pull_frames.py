"""Pull requests of one queue as bytes: what does not change between them is written once."""

from __future__ import annotations

import struct
from dataclasses import replace

from ordermq.remoting.codes import PullFlag, RequestCode
from ordermq.remoting.command import Command
from ordermq.remoting.framing import encode
from ordermq.remoting.headers import PullHeader

_WORDS = struct.Struct(">ii")  # length behind itself; length of the header, in JSON
_OFFSET, _OPAQUE = 7_777_777, 8_888_888
# Quotes within a text are escaped, so these are the members and nothing else.
_OFFSET_MEMBER, _OPAQUE_MEMBER = b'"queueOffset":"%d"' % _OFFSET, b'"opaque":%d' % _OPAQUE


class PullFrames:
    """Makes the frames of pulls that differ in their offset only.

    Args:
        header: the pull; its offset does not count.
    """

    def __init__(self, header: PullHeader) -> None:
        self._header = header
        command = self.command(_OFFSET, _OPAQUE)
        before, _, rest = encode(command)[8:].partition(_OFFSET_MEMBER)
        between, _, after = rest.partition(_OPAQUE_MEMBER)
        self._parts = before + b'"queueOffset":"', b'"' + between + b'"opaque":', after
        self.code = command.code

    def command(self, offset: int, opaque: int) -> Command:
        """The pull at `offset` as a command, for who must sign it."""
        code = RequestCode.PULL_MESSAGE
        if self._header.sys_flag & PullFlag.LITE:
            code = RequestCode.LITE_PULL_MESSAGE
        header = replace(self._header, queue_offset=offset)
        return Command(code, header.to_ext(), opaque=opaque)

    def frame(self, offset: int, opaque: int) -> bytes:
        """The pull at `offset` as `encode` writes it."""
        before, between, after = self._parts
        text = b"%b%d%b%d%b" % (before, offset, between, opaque, after)
        return _WORDS.pack(len(text) + 4, len(text)) + text
