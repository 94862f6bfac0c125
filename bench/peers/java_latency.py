"""Java's client in the latency benchmark: python -m bench.peers.java_latency, see README.md."""

from __future__ import annotations

import subprocess
import tempfile

from bench.end_to_end.latency_arguments import arguments
from bench.peers.java_classes import class_path


def main() -> None:
    asked = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:  # where its log goes
        java = ["java", "-Xmx1g", f"-Duser.home={folder}", "-cp", class_path(), "Latency"]
        sizes = [asked.rate, asked.keys, asked.messages, asked.warm, asked.body_bytes]
        work = [asked.address, asked.topic, asked.group, *map(str, sizes)]
        subprocess.run([*java, *work], check=True)


if __name__ == "__main__":
    main()
