"""The committed names of the old clients are those in their packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dropin import old_names, old_source

PACKAGES = ("rocketmq-client-python-2.0.0", "rocketmq-0.4.4")


def source(fetched: Path, package: str, module: str) -> str:
    (file,) = (fetched / package).rglob(f"rocketmq/{module}.py")
    return file.read_text()


def needed(fetched: Path, *names: str) -> None:
    missing = [name for name in names if not (fetched / name).is_dir()]
    if missing:
        pytest.skip(f"NOT FETCHED, NOT TESTED: {', '.join(missing)}; see ci/dropin.sh")


def test_the_committed_signatures_are_those_of_the_packages(fetched: Path) -> None:
    needed(fetched, *PACKAGES)
    new, old = (old_source.signatures(source(fetched, each, "client")) for each in PACKAGES)
    assert {
        name: arguments for name, arguments in new.items() if name not in old_names.NOT_KEPT
    } == {**old_names.BOTH, **old_names.ONLY_200}
    assert {
        name: arguments for name, arguments in old.items() if name not in old_names.NOT_KEPT
    } == {**old_names.BOTH, **old_names.ONLY_044, **old_names.CONTRADICTIONS}


def test_the_committed_values_are_those_of_the_packages(fetched: Path) -> None:
    needed(fetched, *PACKAGES)
    found = {}
    for package in PACKAGES:
        for module in ("client", "consts", "ffi"):
            for name, members in old_source.enumerations(source(fetched, package, module)).items():
                assert found.setdefault(name, members) == members
    assert found == old_names.ENUMERATIONS


def test_the_committed_exceptions_are_those_of_the_packages(fetched: Path) -> None:
    needed(fetched, *PACKAGES)
    found: dict[str, str] = {}
    for package in PACKAGES:
        found |= old_source.exceptions(source(fetched, package, "exceptions"))
    assert found == old_names.EXCEPTIONS
