"""Compare an sdist and a wheel with the files that git tracks: none missing, none added; the native
modules are hardened (ci/hardening.py), and neither is larger than its budget. Needs pyelftools.

python ci/wheel_contents.py DIST.tar.gz DIST.whl
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import hardening

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ordermq", "pyspark_ordermq")
TOP = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"}
MADE_SDIST = re.compile(r"PKG-INFO|setup\.cfg|ordermq\.egg-info/[\w.-]+")
MADE_WHEEL = re.compile(
    r"ordermq-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|top_level\.txt|entry_points\.txt"
    r"|licenses/LICENSE)"
)
NATIVE = re.compile(r"ordermq/core/(_cython|_cffi)\.[\w.-]*so")


# A wheel is loaded into every container that uses it: growth is to be decided, not to happen.
BUDGET_BYTES = {"sdist": 1_360_000, "wheel": 2_220_000}


def tracked(*rooms: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", *rooms], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(listed.stdout.split())


def sdist_faults(path: str) -> list[str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return differences("sdist", files, tracked(*PACKAGES, "ext") | TOP, MADE_SDIST)


def wheel_faults(path: str) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
    native = {name for name in files if NATIVE.fullmatch(name)}
    kinds = sorted(name.split("/")[-1].split(".")[0] for name in native)
    packed = {f"ordermq/core/c/{Path(name).name}" for name in tracked("ext/core")}
    faults = differences("wheel", files - native, tracked(*PACKAGES) | packed, MADE_WHEEL)
    if kinds != ["_cffi", "_cython"]:
        faults.append(f"wheel: native modules {kinds}, expected one _cffi and one _cython")
    with zipfile.ZipFile(path) as archive:
        for name in sorted(native):
            faults += hardening.faults(f"wheel: {name}", io.BytesIO(archive.read(name)))
    return faults


def size_faults(what: str, path: str) -> list[str]:
    size, budget = Path(path).stat().st_size, BUDGET_BYTES[what]
    print(f"ordermq: {what} of {size:,} bytes, at most {budget:,}")
    return [f"{what}: {size:,} bytes, more than {budget:,}"] if size > budget else []


def differences(what: str, found: set[str], wanted: set[str], made: re.Pattern[str]) -> list[str]:
    more = {name for name in found - wanted if not made.fullmatch(name)}
    return [f"{what}: {name} is missing" for name in sorted(wanted - found)] + [
        f"{what}: {name} does not belong in it" for name in sorted(more)
    ]


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sdist, wheel = sys.argv[1:]
    faults = sdist_faults(sdist) + size_faults("sdist", sdist)
    faults += wheel_faults(wheel) + size_faults("wheel", wheel)
    for fault in faults:
        print(f"ordermq: {fault}", file=sys.stderr)
    if not faults:
        print("ordermq: sdist and wheel hold what git tracks, and two hardened native modules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
