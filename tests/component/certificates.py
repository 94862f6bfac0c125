"""Certificates for tests, made by the `openssl` tool."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, both PEM."""

    certificate: str
    key: str

    def copy_to(self, other: Certificate) -> None:
        """Put these files in the place of others, as a renewal does."""
        replace_file(self.certificate, other.certificate)
        replace_file(self.key, other.key)


def replace_file(source: str, place: str) -> None:
    """Put a copy of a file in the place of another one, at once."""
    made = f"{place}.new"
    shutil.copyfile(source, made)
    Path(made).replace(place)


class Authority:
    """Signs certificates; its own is what others trust.

    Args:
        folder: where the files go; must exist.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._own = self._paths(name)
        self.file = self._own.certificate
        _openssl(
            "req", "-x509", *_KEY, "-subj", f"/CN={name}", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", self._own.key, "-out", self._own.certificate,
        )  # fmt: skip

    def sign(self, name: str, host: str = "IP:127.0.0.1", days: int = 2) -> Certificate:
        """A new certificate for `host`, as `IP:127.0.0.1` or `DNS:broker`; -1 day: expired."""
        made = self._paths(name)
        request, extensions = f"{made.certificate}.csr", f"{made.certificate}.ext"
        # From Python 3.13 on a certificate without its issuer's key id is refused.
        Path(extensions).write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\n")
        _openssl(
            "req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._own.key,
            "-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", made.certificate,
        )  # fmt: skip
        return made

    def _paths(self, name: str) -> Certificate:
        return Certificate(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))


def _openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.fail(
            "openssl not found: these tests make certificates (Debian: apt install openssl)"
        )
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
