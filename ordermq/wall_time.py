"""Times that users give, in ms since 1970; apart from the clocks, which load asyncio."""

from __future__ import annotations

from ordermq.errors import ConfigError

_YEAR_1973_MS = 100_000_000_000  # as seconds, the year 5138: no number can mean both


def require_wall_ms(name: str, value: int) -> None:
    """Raise ConfigError if a time in ms since 1970 was given in seconds; 0 stands for none."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ConfigError(f"{name}={value}: expected ms since 1970, within 64 bits")
    if 0 < value < _YEAR_1973_MS:
        raise ConfigError(
            f"{name}={value}: expected ms since 1970, and this looks like seconds: write "
            f"{value * 1_000}"
        )
