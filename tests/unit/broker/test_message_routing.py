"""Small decisions about a message's place (docs/internals/protocol.md#tags, 6)."""

from __future__ import annotations

import pytest

from ordermq.broker.message_routing import delay_level


@pytest.mark.parametrize(
    ("text", "level"),
    [(None, 0), ("", 0), ("0", 0), ("-3", 0), ("3", 3), ("18", 18), ("19", 18), ("soon", 0)],
)
def test_delay_levels_are_clamped(text: str | None, level: int) -> None:
    assert delay_level(text) == level
