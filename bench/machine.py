"""The machine of a measurement, and the processes it was made with."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ordermq
from ordermq.core import IMPLEMENTATION

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
_MAXRSS_PER_MIB = 1024 * (1024 if sys.platform == "darwin" else 1)


def describe() -> dict[str, Any]:
    """Describe machine and versions, without host name and paths."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "ordermq": ordermq.__version__,
        "core": IMPLEMENTATION,
        "date": time.strftime("%Y-%m-%d"),
    }


def compile_package() -> None:
    """Compile ordermq's modules, as pip does when it installs them.

    Else each process of a checkout compiles what it imports, if PYTHONDONTWRITEBYTECODE is set.
    """
    for package in ("ordermq", "pyspark_ordermq"):
        compileall.compile_dir(ROOT / package, quiet=1)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(package: Path | None) -> dict[str, str]:
    """Return the environment in which a process imports `ordermq` from the folder `package`.

    Its `bench` is always that of this checkout, so that two versions do the same work.
    """
    if package is None:
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))}


@contextlib.contextmanager
def broker_process(
    data: Path,
    *,
    lease_ms: int = 60_000,
    durability: str = "fsync",
    history: Path | None = None,
    package: Path | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `ordermq broker` as a process of its own; yields it and its address.

    Args:
        package: a folder with another `ordermq` to run instead of this checkout's.
    """
    command = [sys.executable, "-m", "bench.serve", str(data), durability, str(lease_ms)]
    if history is not None:
        command.append(str(history))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=package or ROOT,
        env=environment(package),
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)


def run_json(
    module: str,
    arguments: Sequence[object],
    timeout_s: float = 600,
    *,
    package: Path | None = None,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a peer (see bench/peers/README.md); return its JSON line, with `peak_mib` of memory.

    If the line does not tell it, that is the most any of its processes held, the interpreter and
    the JVM included, or what this one holds, if that is more: Linux counts it.

    Args:
        package: a folder with another `ordermq` to run instead of this checkout's.
        python: the interpreter.
        variables: of its environment, besides ours.
    """
    command = [python, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=package or ROOT,
        env=environment(package) | dict(variables or {}),
    )
    deadline = threading.Timer(timeout_s, process.kill)
    deadline.start()
    try:
        assert process.stdout is not None
        with process.stdout as told:
            lines = told.read().strip().splitlines()
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()  # interrupted: nobody else would end it
        process.wait()
        raise
    finally:
        deadline.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    result: dict[str, Any] = json.loads(lines[-1])
    result.setdefault("peak_mib", used.ru_maxrss / _MAXRSS_PER_MIB)
    return result


def command_line(module: str) -> str:
    """Return the command of this run, with its sizes."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def both_commands(earlier: str, command: str) -> str:
    """Return the commands of a result that a further one has measured in part."""
    return earlier if command in earlier else f"{earlier}; {command}"


def save(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result with this machine, also over that of a result which parts were added to."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | {"machine": describe()}, indent=1, sort_keys=True) + "\n")
    return path
