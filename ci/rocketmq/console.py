"""Messages to the user, and the error that ends a command."""

from __future__ import annotations

import sys


class CommandError(Exception):
    """An error that is reported to the user without a traceback."""


def report(text: str) -> None:
    print(f"ordermq: {text}", file=sys.stderr, flush=True)
