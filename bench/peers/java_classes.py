"""Java's classes as peers: fetched and compiled once, outside of the checkout.

python -m bench.peers.java_classes WORK, with one of process_queue, offset_map, lock_table
and codec; prints what bench/peers/java prints. Needs a JDK (17 or later) and Maven.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from bench import workloads
from bench.core.pull_bodies import case, pull_body, sizes
from bench.machine import ROOT

WORKS = ("process_queue", "offset_map", "lock_table", "codec")
SOURCES = Path(__file__).parent / "java"
VERSION = "5.3.3"


def missing() -> list[str]:
    """Return the programs that are missing."""
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


def class_path() -> str:
    """Fetch the classes and compile the programs against them, unless done before.

    Raises: subprocess.CalledProcessError: Maven or javac failed and printed the reason.
    """
    script = [str(ROOT / "ci" / "rocketmq.sh"), "jars", VERSION]
    jars = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    files = sorted(SOURCES.glob("*.java"))
    mark = zlib.crc32(b"".join(file.read_bytes() for file in files))
    classes = Path(jars).parent.parent / f"bench-{VERSION}-{mark:08x}"
    if not (classes / "done").exists():
        subprocess.run(["javac", "-cp", jars, "-d", classes, *files], check=True)
        (classes / "done").touch()
    return f"{SOURCES}:{classes}:{jars}"  # our logging settings first


def arguments(work: str, folder: Path) -> list[str]:
    """Return the sizes of workloads.py in the form that bench/peers/java reads."""
    batch = workloads.CORE_BATCH
    settings: dict[str, object] = {"version": VERSION, "warm_ms": workloads.CORE_WARM_MS}
    if work == "process_queue":
        settings |= {
            "batch": batch,
            "count": workloads.CORE_BATCHES_TIMED,
            "depths": listed(depth // batch * batch for depth in workloads.CORE_DEPTHS),
        }
    elif work == "offset_map":
        settings |= {
            "pairs": workloads.CORE_MAP_PAIRS,
            "seed": workloads.SEED,
            "sizes": listed(workloads.CORE_MAP_SIZES),
            "width": workloads.CORE_MAP_DISORDER,
        }
    elif work == "lock_table":
        settings |= {
            "batches": listed(workloads.CORE_LOCK_BATCHES),
            "entries": listed(workloads.CORE_LOCK_ENTRIES),
            "group": workloads.CORE_LOCK_GROUP,
            "renewals": workloads.CORE_LOCK_RENEWALS,
        }
    else:
        files = []
        for messages, body_bytes in sizes():
            files.append(folder / f"{messages}-{body_bytes}")
            files[-1].write_bytes(pull_body(messages, body_bytes))
        settings |= {
            "files": listed(files),
            "labels": listed(case(*size) for size in sizes()),
            "messages": listed(messages for messages, _ in sizes()),
            "timed": workloads.CORE_CODEC_TIMED,
        }
    return [work, *(f"{name}={value}" for name, value in settings.items())]


def listed(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORKS)
    work = parser.parse_args().work
    with tempfile.TemporaryDirectory() as folder:
        java = ["java", "-Xmx3400m", f"-Duser.home={folder}", "-cp", class_path(), "Peer"]
        subprocess.run([*java, *arguments(work, Path(folder))], check=True)


if __name__ == "__main__":
    main()
