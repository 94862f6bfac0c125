"""Command line of the senders of bench_send."""

from __future__ import annotations

import argparse


def arguments(description: str | None) -> argparse.Namespace:
    """Read the work of one run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--keys", type=int, required=True, help="keys (or batches) in flight")
    parser.add_argument(
        "--batch", type=int, required=True, help="messages per request; 1 = with keys"
    )
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True, help="sent before the clock starts")
    parser.add_argument("--body-bytes", type=int, required=True)
    parser.add_argument("--threads", action="store_true", help="one thread per key, as Java needs")
    return parser.parse_args()
