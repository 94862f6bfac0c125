"""Command line of the clients of bench_latency, which send at a fixed rate and listen."""

from __future__ import annotations

import argparse


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--rate", type=int, required=True, help="messages per second, in all")
    parser.add_argument("--keys", type=int, required=True, help="one thread per key")
    parser.add_argument("--messages", type=int, required=True, help="timed messages")
    parser.add_argument("--warm", type=int, required=True, help="messages before the timed ones")
    parser.add_argument("--body-bytes", type=int, required=True)
    return parser.parse_args()
