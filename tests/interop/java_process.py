"""Small Java programs that use RocketMQ's client: compiled once, run as child processes."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.interop.cluster import LOCK_INTERVAL_MS, LOCK_MAX_LIVE_MS, ROOT
from tests.interop.line_process import LineProcess

SOURCES = Path(__file__).parent / "java"


def class_path(version: str) -> str:
    """Return the class path: the jars of a version, and the programs compiled against them."""
    script = ["ci/rocketmq.sh", "jars", version]
    jars = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    jars = jars.strip()
    files = sorted(SOURCES.glob("*.java"))
    mark = zlib.crc32(b"".join(file.read_bytes() for file in files))
    classes = Path(jars).parent.parent / f"interop-{version}-{mark:08x}"
    if not (classes / "done").exists():
        command = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (classes / "done").touch()
    return f"{SOURCES}:{classes}:{jars}"  # our logging settings first


class JavaProcess(LineProcess):
    """Start one of the programs in java/.

    Args:
        folder: its home, for logs and offset files.
        options: Java options.
        arguments: see the comment of the program.
    """

    def __init__(
        self,
        version: str,
        program: str,
        folder: Path,
        *,
        options: Sequence[str] = (),
        on_line: Callable[[dict[str, Any]], None] | None = None,
        **arguments: object,
    ) -> None:
        command = [
            "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}/logs",
            f"-Drocketmq.client.rebalance.lockMaxLiveTime={LOCK_MAX_LIVE_MS}",
            f"-Drocketmq.client.rebalance.lockInterval={LOCK_INTERVAL_MS}",
            "-Drocketmq.client.unlockDelayTimeMills=1000",  # of 4.9, which waits 20 s
            *options, "-cp", class_path(version), program,
            *(f"{name}={value}" for name, value in arguments.items()),
        ]  # fmt: skip
        super().__init__(command, folder, on_line=on_line)
