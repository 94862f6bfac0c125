"""The native modules of this checkout are hardened as those of a wheel (ci/hardening.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ordermq import core

ROOT = Path(__file__).resolve().parents[3]
CHECK = [sys.executable, str(ROOT / "ci" / "hardening.py")]
BUILT = sorted(Path(core.__file__).parent.glob("_*.so"))
IS_ELF = sys.platform == "linux"  # nothing can be told of other files


def test_the_native_modules_are_hardened() -> None:
    done = subprocess.run([*CHECK, *BUILT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_without_hardening_is_found(tmp_path: Path) -> None:
    source, built = tmp_path / "soft.c", tmp_path / "soft.so"
    source.write_text("int soft;\n")
    lazy = ["-fno-stack-protector", "-Wl,-z,norelro", "-Wl,-z,lazy", "-Wl,-z,execstack"]
    subprocess.run(["cc", "-shared", "-fPIC", *lazy * IS_ELF, "-o", built, source], check=True)
    done = subprocess.run([*CHECK, built], capture_output=True, text=True, check=False)
    assert done.returncode == IS_ELF
    told = ("no RELRO", "may be executed", "no BIND_NOW", "no stack protector", "not fortified")
    assert all((fault in done.stderr) == IS_ELF for fault in told), done.stderr
