"""Framing: how one client writes its requests, whatever they are: with a namespace, signed, with a
header in binary form; and the templates of requests that are written again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ordermq import core
from ordermq.config import RemotingConfig, SerializeType
from ordermq.core.streams import RequestGap
from ordermq.remoting.codes import PullFlag, RequestCode
from ordermq.remoting.command import (
    Command,
    Serialization,
    encode,
    encode_binary,
    encode_ext,
    encode_json,
    make_binary,
)
from ordermq.remoting.headers import PullHeader, SendHeader

if TYPE_CHECKING:
    from ordermq.remoting.namespaces import Namespaces
    from ordermq.remoting.signing import Credentials, FieldSigner

_OFFSET_FIELD, _SIGNATURE_FIELD = "queueOffset", "Signature"
# Placeholders. Quotes within a string are escaped in JSON, so each member matches only itself.
_OFFSET, _OPAQUE = 7_777_777, 8_888_888
_OFFSET_MEMBER, _OPAQUE_MEMBER = b'"queueOffset":"%d"' % _OFFSET, b'"opaque":%d' % _OPAQUE
_SIGNATURE_MEMBER = b'"Signature":"%b"'
# Gaps of the send templates, in the order in which the members are written, and signed.
_SYS_FLAG, _BORN, _FLAG, _PROPERTIES = 7_777_771, 7_777_772, 7_777_773, "7777774"
_SEND_MEMBERS = {
    "f": b'"f":"%d"' % _SYS_FLAG,
    "g": b'"g":"%d"' % _BORN,
    "h": b'"h":"%d"' % _FLAG,
    "i": b'"i":"%b"' % _PROPERTIES.encode(),
}
_BATCH_MEMBERS = {name: _SEND_MEMBERS[name] for name in ("f", "g")}
_TEXT_NAMES = (b'"i"', b'"Signature"')  # the values of the others are numbers


class Framing:
    """Encodes the requests of one client; see `RemotingConfig`.

    Attributes:
        is_plain: requests are written as they are, without a namespace, a signature, or a binary
            header.
        has_send_templates: sends differ in a few values; else each is encoded in full.
    """

    def __init__(self, config: RemotingConfig) -> None:
        self._is_binary = config.serialize_type is SerializeType.ROCKETMQ
        self.namespaces = _namespaces_of(config)
        self.credentials = _credentials_of(config)
        self.is_plain = not (self._is_binary or self.namespaces or self.credentials)
        # A namespace is written into the properties of each message.
        renames = self.namespaces is not None and bool(self.namespaces.name)
        self.has_send_templates = not (self._is_binary or renames)

    def frame(self, request: Command) -> bytes:
        """Encode a request as configured.

        Raises: ConfigError: a name with its namespace is too long.
        """
        self.complete(request)
        return encode(request)

    def complete(self, request: Command) -> None:
        """Add to a request what `frame` writes; change nothing in it afterwards."""
        # In this order: the signature covers the names that the broker sees.
        if self.namespaces is not None:
            self.namespaces.wrap_request(request)
        if self.credentials is not None:
            self.credentials.sign(request)
        self.choose_encoding(request)

    def choose_encoding(self, command: Command) -> None:
        """Choose the header's encoding for a request or an answer."""
        if self._is_binary:
            make_binary(command)


class PullFrames:
    """Frames of pull requests of one queue that differ in offset and opaque, and what these change.

    The header is encoded once, and the gaps are filled for each pull.

    Args:
        header: the pull; its offset is ignored.
    Attributes:
        template: writes them; the pull engine has it, too.
    """

    def __init__(self, header: PullHeader, framing: Framing) -> None:
        self.code = RequestCode.PULL_MESSAGE
        if header.sys_flag & PullFlag.LITE:
            self.code = RequestCode.LITE_PULL_MESSAGE
        ext = replace(header, queue_offset=_OFFSET).to_ext()
        command = Command(self.code, ext, opaque=_OPAQUE)
        framing.complete(command)
        signing = None
        if framing.credentials is not None:
            signing = framing.credentials.signed_around(command.ext, _OFFSET_FIELD)
        is_binary = command.serialization is Serialization.ROCKETMQ
        parts = _binary_parts(command) if is_binary else _json_parts(command)
        texts = tuple(text for text, _ in parts)
        gaps = tuple(gap for _, gap in parts if gap is not None)
        self.template = core.RequestTemplate(texts, gaps, is_binary, signing)

    def frame(self, offset: int, opaque: int) -> bytes:
        """Return the frame of the pull at `offset`, equal to `Framing.frame` of the command."""
        return self.template.frame(offset, opaque)


class SendFrames:
    """Frames of sends to one queue that differ only in what each brings of its own.

    The header is encoded once for single messages and once for batches, and the rest is filled in.

    Args:
        header: its producer, topic, queue and what else stays the same.
    """

    def __init__(self, header: SendHeader, framing: Framing) -> None:
        self._framing = framing
        self._single: _SendTemplate | None = None
        self._batch: _SendTemplate | None = None
        if framing.has_send_templates:
            single = replace(
                header,
                sys_flag=_SYS_FLAG,
                born_timestamp_ms=_BORN,
                flag=_FLAG,
                properties=_PROPERTIES,
                batch=None,
            )
            batch = replace(single, flag=0, properties="", batch=True)
            self._single = _SendTemplate(single, _SEND_MEMBERS, framing)
            self._batch = _SendTemplate(batch, _BATCH_MEMBERS, framing)

    def frame(self, header: SendHeader, opaque: int, body: bytes) -> bytes:
        """Return the frame of a send, equal to `Framing.frame` of the command.

        Raises: ConfigError: a name with its namespace is too long.
        """
        if self._single is None or self._batch is None:
            command = Command(send_code(header), header.to_ext(), body, opaque=opaque)
            return self._framing.frame(command)
        values = header.sys_flag, header.born_timestamp_ms
        if header.batch:
            return self._batch.frame(values, opaque, body)
        return self._single.frame((*values, header.flag, header.properties), opaque, body)


def send_code(header: SendHeader) -> RequestCode:
    """Return the request code of a send."""
    return RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2


class _SendTemplate:
    """Frames of sends, with gaps where the values of these members are."""

    def __init__(self, header: SendHeader, members: dict[str, bytes], framing: Framing) -> None:
        command = Command(send_code(header), header.to_ext(), opaque=_OPAQUE)
        framing.complete(command)
        found = [*members.values()]
        self._signer: FieldSigner | None = None
        if framing.credentials is not None:
            self._signer = framing.credentials.signer_around(command.ext, *members)
            found.append(_SIGNATURE_MEMBER % command.ext[_SIGNATURE_FIELD].encode())
        texts = _texts_around([*found, _OPAQUE_MEMBER], encode_json(command))
        self._template = core.FrameTemplate(texts)

    def frame(self, values: tuple[int | str, ...], opaque: int, body: bytes) -> bytes:
        if self._signer is not None:
            signed = "".join(map(str, values)).encode()
            values = *values, self._signer.signature(signed, body)
        return self._template.frame((*values, opaque), body)


def _texts_around(members: Sequence[bytes], rest: bytes) -> list[bytes]:
    """Return the texts between the values of these members, which come in this order."""
    texts: list[bytes] = []
    open_quote = b""
    for member in members:
        before, _, rest = rest.partition(member)
        name, _, value = member.partition(b":")
        # Numbers of extFields are strings, so their quotes belong to the text; those of a text are
        # written with it, and the member `opaque` has none.
        quote = b'"' if value.startswith(b'"') and name not in _TEXT_NAMES else b""
        texts.append(open_quote + before + name + b":" + quote)
        open_quote = quote
    return [*texts, open_quote + rest]


# Texts of a header, and the gap behind each; None behind the last one.
_Parts = list[tuple[bytes, RequestGap | None]]


def _json_parts(command: Command) -> _Parts:
    members = [(_OFFSET_MEMBER, RequestGap.OFFSET)]
    signature = command.ext.get(_SIGNATURE_FIELD)
    if signature is not None:
        members.append((_SIGNATURE_MEMBER % signature.encode(), RequestGap.SIGNATURE))
    members.append((_OPAQUE_MEMBER, RequestGap.REQUEST_ID))
    parts: _Parts = []
    rest, opened = encode_json(command), b""
    for member, gap in members:
        before, _, rest = rest.partition(member)
        name, _, value = member.partition(b":")
        quote = value[:1] if value.startswith(b'"') else b""
        parts.append((opened + before + name + b":" + quote, gap))
        opened = quote
    return [*parts, (opened + rest, None)]


def _binary_parts(command: Command) -> _Parts:
    header = encode_binary(command)
    id_at, id_end = 5, 9  # docs/internals/protocol.md#binary-header
    sizes_at = id_end + 8  # behind the flag and the size of the remark, which requests do not have
    parts: _Parts = [
        (header[:id_at], RequestGap.REQUEST_ID),
        (header[id_end:sizes_at], RequestGap.FIELDS_SIZE),
    ]
    text = b""
    for name, value in command.ext.items():
        text += encode_ext({name: value})
        if name == _OFFSET_FIELD:
            # Without its value, and the size before that: both change with each pull.
            parts.append((text[: -len(value) - 4], RequestGap.OFFSET))
            text = b""
        elif name == _SIGNATURE_FIELD:
            parts.append((text[: -len(value)], RequestGap.SIGNATURE))
            text = b""
    return [*parts, (text, None)]


# Both are loaded where they are configured: few are, and their patterns and hashes take longer to
# load than the rest of a connection.
def _namespaces_of(config: RemotingConfig) -> Namespaces | None:
    """Return the configured namespaces, None if names are sent unchanged."""
    if not config.namespace and not config.namespace_v2:
        return None
    from ordermq.remoting.namespaces import Namespaces

    return Namespaces(config.namespace, config.namespace_v2)


def _credentials_of(config: RemotingConfig) -> Credentials | None:
    """Return the configured account, None if requests are not signed."""
    if not config.access_key:
        return None
    from ordermq.remoting.signing import Credentials

    return Credentials(config.access_key, config.secret_key, config.security_token)
