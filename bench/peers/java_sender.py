"""Java's producer in bench_send: python -m bench.peers.java_sender, see bench/peers/README.md."""

from __future__ import annotations

import subprocess
import tempfile

from bench.end_to_end.send_arguments import arguments
from bench.peers.java_classes import class_path


def main() -> None:
    asked = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:  # where its log goes
        java = ["java", "-Xmx1g", f"-Duser.home={folder}", "-cp", class_path(), "Send"]
        sizes = [asked.keys, asked.batch, asked.messages, asked.warm, asked.body_bytes]
        subprocess.run([*java, asked.address, asked.topic, *map(str, sizes)], check=True)


if __name__ == "__main__":
    main()
