"""Virtual environments of peers that conflict with ordermq, created outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from bench.peers.compiled import cache_folder

ROOT = Path(__file__).resolve().parents[2]


def python_with(package: str) -> Path:
    """Return the interpreter of an environment with `package`, given as name==version.

    Raises: subprocess.CalledProcessError: pip could not install it and printed the reason.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{package.replace('==', '-')}-python{version}"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        print(f"ordermq: installing {package} into {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            package,
        ]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        (folder / "done").touch()
    return python


def is_there(package: str) -> bool:
    """Make the environment if needed; report why and return False if that fails."""
    try:
        python_with(package)
    except subprocess.CalledProcessError as error:
        print(f"ordermq: {package} LEFT OUT: {error}", file=sys.stderr)
        return False
    return True


def run_in(package: str, module: str, arguments: Sequence[str], home: str) -> None:
    """Run a module of this checkout with `package` and --inside; its output is passed through.

    Args:
        home: a folder for its logs.
    """
    environment = os.environ | {"HOME": home, "PYTHONPATH": str(ROOT)}
    command = [str(python_with(package)), "-m", module, *arguments, "--inside"]
    subprocess.run(command, check=True, env=environment)
