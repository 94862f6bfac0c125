"""Java's client in the catch-up: python -m bench.peers.java_client, see bench/peers/README.md."""

from __future__ import annotations

import argparse
import subprocess
import tempfile

from bench.peers.java_classes import class_path

# As rows of bench_options are called, and as CatchUp.java calls them.
OPTIONS = {
    "base": (),
    "account": ("account",),
    "TLS": ("tls",),
    "TLS and account": ("tls", "account"),
    # Java's client has no metrics for Prometheus.
    "TLS, account, Prometheus": ("tls", "account"),
    "TLS, account, Prometheus, reading": ("tls", "account", "reading"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pull-size", type=int, required=True)
    parser.add_argument("--warm", type=int, default=0, help="messages before the clock starts")
    parser.add_argument("--option", choices=list(OPTIONS), default="base")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # where its log goes
        java = ["java", "-Xmx1g", f"-Duser.home={folder}", "-cp", class_path(), "CatchUp"]
        sizes = [asked.batch, asked.pull_size, asked.messages, asked.warm]
        work = [asked.address, asked.topic, asked.group, *map(str, sizes)]
        subprocess.run([*java, *work, *OPTIONS[asked.option]], check=True)


if __name__ == "__main__":
    main()
