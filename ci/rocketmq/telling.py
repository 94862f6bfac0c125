"""What the user is told, and when we stop."""

from __future__ import annotations

import sys


class Trouble(Exception):
    """Told to the user, without a traceback."""


def say(text: str) -> None:
    print(f"ordermq: {text}", file=sys.stderr, flush=True)
