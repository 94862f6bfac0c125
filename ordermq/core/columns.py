"""The columns of a message index: name -> (omq_column, format). One table for all cores."""

from __future__ import annotations

from typing import Final

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


def unknown(name: str) -> ValueError:
    """Return the error for a column there is none of."""
    return ValueError(f"no column {name!r}: expected some of {', '.join(COLUMNS)}")
