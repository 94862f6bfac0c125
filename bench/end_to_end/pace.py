"""The command line of who sends at a pace and listens."""

from __future__ import annotations

import argparse


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--rate", type=int, required=True, help="messages a second, in all")
    parser.add_argument("--keys", type=int, required=True, help="each on a thread of its own")
    parser.add_argument("--messages", type=int, required=True, help="that are timed")
    parser.add_argument("--warm", type=int, required=True, help="messages before those")
    parser.add_argument("--body-bytes", type=int, required=True)
    return parser.parse_args()
