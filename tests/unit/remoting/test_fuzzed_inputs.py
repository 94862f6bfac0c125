"""Inputs that fuzzing kept, decoded again: each is read or refused, never anything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import decoders

CORPUS = Path(decoders.__file__).parent


def kept() -> Iterator[tuple[str, Path]]:
    for target in decoders.TARGETS:
        found = sorted((CORPUS / target).iterdir())
        assert found, target
        yield from ((target, path) for path in found)


@pytest.mark.parametrize(
    ("target", "path"), list(kept()), ids=lambda part: getattr(part, "name", part)
)
def test_an_input_is_read_or_refused(target: str, path: Path) -> None:
    decoders.TARGETS[target](path.read_bytes())
