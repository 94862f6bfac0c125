"""A Rust client in the catch-up: python -m bench.peers.rust_client, see README.md here.

The crate `rocketmq-client-rust` and its 280 others come from crates.io and are compiled once, which
takes some minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bench.peers.compiled import program

FOLDER = Path(__file__).parent / "rust"
# In a folder beside the program, whose place comes after -o: Cargo has no such option, and writes
# a lock file beside the sources.
_BUILD = """
set -e
mkdir -p "$2.build"
cp -r Cargo.toml src "$2.build"
cd "$2.build"
cargo build --release
mv "target/release/$0" "$2"
"""


def compiled() -> Path:
    """Return the program, compiled by Cargo."""
    sources = [FOLDER / name for name in ("Cargo.toml", "src/main.rs")]
    return program("rust_catch_up", sources, ["sh", "-c", _BUILD, "rust_catch_up"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the name server")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    asked = parser.parse_args()
    sizes = [asked.batch, asked.pull_size, asked.messages, asked.warm]
    work = [asked.address, asked.topic, asked.group, *map(str, sizes)]
    # It logs every step to standard error, whatever RUST_LOG says.
    done = subprocess.run([compiled(), *work], stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.stderr[-2_000:].decode(errors="replace"))


if __name__ == "__main__":
    main()
