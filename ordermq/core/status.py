"""The numbers of the C core in words: statuses and faults as exceptions, columns by name.

The bindings and the reference raise through this file only, so that the three cores fail alike.
tests/architecture/test_declarations.py compares the numbers with ordermq.h.
"""

from __future__ import annotations

from typing import Final

from ordermq.errors import ProtocolError, StateError

# omq_status: results of a call.
OK: Final = 0
NO_MEMORY: Final = 1
OUT_OF_RANGE: Final = 2
WRONG_SHAPE: Final = 3
DUPLICATE: Final = 4
MALFORMED: Final = 5
UNKNOWN_ID: Final = 6

# omq_stage: stages of an assigned queue.
STAGE_ACTIVE: Final = 0
STAGE_DRAINING: Final = 1
STAGE_GONE: Final = 2

# omq_claim_result: reasons of a queue to hand nothing out.
CLAIM_EMPTY: Final = 1
CLAIM_REVOKED: Final = 2
CLAIM_PAUSED: Final = 3
CLAIM_LEASE_LOST: Final = 4

# omq_claim_kind: how a claim treats the dispatch flag.
CLAIM_ALONE: Final = 0
CLAIM_SHARED: Final = 1
CLAIM_FURTHER: Final = 2

# omq_follow: what follows from a call of an assigned queue.
COUNTS: Final = 1
LEASE_OVER: Final = 2
DRAINED: Final = 4
HAS_ROOM: Final = 8
DISPATCH: Final = 16
IDLE: Final = 32
WHILE_CLAIMED: Final = 64  # with LEASE_OVER: it was found when a claim was settled

NO_KEY: Final = 2**32 - 1  # in a column of key sizes: the message has no key
MAX_OFFSET: Final = 2**63 - 2  # one more, the next offset to commit, must still be an int64
ID_PREFIX_DIGITS: Final = 28  # of a unique id of 32: process and time, before its number

# OK and MALFORMED are missing: a malformed message has a fault, and says where.
_EXCEPTIONS: Final[dict[int, tuple[type[Exception], str]]] = {
    NO_MEMORY: (MemoryError, "no memory; what was done stays done, the call may be repeated"),
    OUT_OF_RANGE: (ValueError, "an argument is out of its range"),
    WRONG_SHAPE: (
        StateError,
        "a queue holds either objects and batches or columns, as its first put chose; "
        "use the put and take of that shape, or another queue",
    ),
    DUPLICATE: (ValueError, "an entry occurs twice"),
    UNKNOWN_ID: (
        ValueError,
        "an id is not of this table, or was released and swept; intern its name again",
    ),
}

# omq_fault: reasons why a stored record, or a message of a batch body, is malformed.
TRAILING: Final = 1
RECORD_SIZE: Final = 2
TRUNCATED: Final = 3
MAGIC: Final = 4
FIXED_PART: Final = 5
QUEUE_OFFSET: Final = 6
BODY_SIZE: Final = 7
TOPIC_SIZE: Final = 8
PROPERTY_SIZE: Final = 9
RECORD_END: Final = 10
CRC: Final = 11
INNER_SIZE: Final = 12
INNER_BODY: Final = 13
INNER_PROPERTIES: Final = 14
INNER_COMPRESSED: Final = 15
INNER_DELAYED: Final = 16
QUEUE_ID: Final = 17
OFFSET_ORDER: Final = 18
OFFSET_RANGE: Final = 19
INNER_MARKS: Final = 20

# Each text follows "record 3, byte 7: " and says what stands there.
_FAULTS: Final[dict[int, str]] = {
    TRAILING: "too few bytes for another record follow the last one",
    RECORD_SIZE: "its size field is below the smallest record",
    TRUNCATED: "stored record is truncated: its size reaches past the end of the body",
    MAGIC: "its magic code is neither v1 nor v2",
    FIXED_PART: "its hosts leave no room for the fixed fields",
    QUEUE_OFFSET: "its queue offset is negative or too great",
    BODY_SIZE: "its body length is negative or reaches past the record",
    TOPIC_SIZE: "its topic length is out of range or reaches past the record",
    PROPERTY_SIZE: "its properties length is negative or reaches past the record",
    RECORD_END: "its fields end before the record does",
    CRC: "its checksum is not that of its body",
    INNER_SIZE: "a message of its inner batch is too small or reaches past the batch",
    INNER_BODY: "a message of its inner batch has a body length that is negative or too great",
    INNER_PROPERTIES: "a message of its inner batch does not end with its properties",
    INNER_COMPRESSED: "its inner batch is compressed as a whole, which no producer does",
    INNER_DELAYED: "a message of its inner batch is delayed or transactional",
    QUEUE_ID: "its queue id is not that of the queue that was pulled",
    OFFSET_ORDER: "its queue offset is not greater than that of the message before it",
    OFFSET_RANGE: "its queue offset is outside of what was asked for",
    INNER_MARKS: "it is an inner batch and has one of the two marks of it alone",
}

# The same for a batch body on its way to the store; the text follows "message 3, byte 7: ".
_BATCH_FAULTS: Final[dict[int, str]] = {
    INNER_SIZE: "message is truncated: its size is too small, or reaches past the batch",
    INNER_BODY: "its body length is negative or reaches past the message",
    INNER_PROPERTIES: "it does not end with its properties",
    INNER_DELAYED: "messages of a batch can be neither delayed nor transactional",
}

# omq_header_fault: reasons why a binary command header is malformed.
HEADER_OK: Final = 0
HEADER_END: Final = 1
HEADER_REMARK: Final = 2
HEADER_FIELDS: Final = 3
HEADER_NAME: Final = 4
HEADER_VALUE: Final = 5
HEADER_TEXT: Final = 6

_HEADER_FAULTS: Final[dict[int, str]] = {
    HEADER_END: "header is truncated: it ends there, too early",
    HEADER_REMARK: "a remark of {size} bytes, {left} left",
    HEADER_FIELDS: "{size} bytes of fields, {left} left",
    HEADER_NAME: "a field name of {size} bytes, {left} left",
    HEADER_VALUE: "a field value of {size} bytes, {left} left",
    HEADER_TEXT: "a text that is not UTF-8",
}

# Columns of a message index: name -> (omq_column, format of an array of it).
COLUMNS: Final[dict[str, tuple[int, str]]] = {
    "offsets": (0, "q"),
    "physical_offsets": (1, "q"),
    "born_timestamps": (2, "q"),
    "store_timestamps": (3, "q"),
    "positions": (4, "I"),
    "body_positions": (5, "I"),
    "body_sizes": (6, "I"),
    "property_positions": (7, "I"),
    "property_sizes": (8, "I"),
    "tag_hashes": (9, "i"),
    "queue_ids": (10, "i"),
    "flags": (11, "i"),
    "sys_flags": (12, "i"),
    "reconsume_times": (13, "i"),
}


def failure(status: int, where: str) -> Exception:
    """Return the exception for a status other than OK and MALFORMED.

    Args: where: the operation and its object; the text starts with it.
    """
    kind, text = _EXCEPTIONS[status]
    return kind(f"{where}: {text}")


def malformed(fault: int, record: int, position: int) -> ProtocolError:
    """Return the error for a malformed pull body.

    Args:
        fault: an omq_fault.
        record: index of the bad record, from 0.
        position: bytes from the start of the body to the field at fault.
    """
    return ProtocolError(
        f"pull body: record {record}, byte {position}: {_FAULTS[fault]}; "
        "nothing of this body was used, pull it again or look at the broker's store"
    )


def malformed_batch(fault: int, message: int, position: int, size: int) -> ProtocolError:
    """Return the error for a malformed batch body.

    Args:
        fault: an omq_fault of an inner batch.
        message: index of the bad one, from 0.
        position: bytes from the start of the batch to the field at fault.
        size: of the batch, bytes.
    """
    return ProtocolError(
        f"batch of {size} bytes: message {message}, byte {position}: {_BATCH_FAULTS[fault]}; "
        "nothing of it was stored"
    )


def not_text(error: UnicodeDecodeError) -> ProtocolError:
    """Return the error for properties that are not UTF-8.

    Args: error: the one of Python's decoder, which names the byte.
    """
    return ProtocolError(f"message properties are not UTF-8: {error}")


def piece_not_text(number: int, error: UnicodeDecodeError) -> ProtocolError:
    """Return the error for a gathered piece that is not UTF-8.

    Args:
        number: index of the piece, from 0.
        error: the one of Python's decoder, which names the byte.
    """
    return ProtocolError(f"piece {number} is not UTF-8: {error}")


def malformed_header(fault: int, header: bytes, position: int) -> ProtocolError:
    """Return the error for a malformed binary command header.

    Args:
        fault: an omq_header_fault other than OK.
        position: bytes from the start of the header to the size or text at fault.
    """
    # The size at fault is read again for the text: C tells only where it is.
    width = 2 if fault == HEADER_NAME else 4
    size = int.from_bytes(header[position : position + width], "big", signed=True)
    left = len(header) - position - width
    text = _HEADER_FAULTS[fault].format(size=size, left=left)
    return ProtocolError(f"binary header, byte {position}: {text}")


def malformed_proxy_message(why: str) -> ProtocolError:
    """Return the error for a message of RocketMQ's proxy."""
    return ProtocolError(f"a message of the proxy cannot be read: {why}")


def unknown_column(name: str) -> ValueError:
    """Return the error for a column that a message index does not have."""
    return ValueError(f"no column {name!r}: expected some of {', '.join(COLUMNS)}")


def not_an_id_prefix(prefix: str) -> ValueError:
    """Return the error for the first part of unique ids that is none."""
    return ValueError(f"prefix {prefix!r} of unique ids: expected {ID_PREFIX_DIGITS} digits")


def not_done() -> ValueError:
    """Return the error for the receipt of a message that waits for it."""
    return ValueError("the message has no receipt yet")


def texts_of_template(count: int, most_values: int) -> ValueError:
    """Return the error of a frame template of so many texts."""
    return ValueError(f"frame template of {count} texts: expected 1..{most_values + 1}")


def values_of_template(count: int, expected: int) -> ValueError:
    """Return the error of a frame with too many or too few values."""
    return ValueError(f"{count} values for a frame template with {expected} gaps")


def texts_of_request(texts: int, gaps: int, most_gaps: int) -> ValueError:
    """Return the error of a request template with these numbers of texts and gaps."""
    return ValueError(
        f"request template of {texts} texts, {gaps} gaps: expected up to {most_gaps} gaps, and "
        "one text more"
    )
