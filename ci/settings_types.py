"""Writes ordermq/config/settings.py: the settings of each client as keywords, for type checkers.

.venv/bin/python ci/settings_types.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Final

from ordermq import config
from ordermq.config.checks import Flat
from ordermq.config.client import ClientConfig

MODULE: Final = Path(__file__).resolve().parents[1] / "ordermq" / "config" / "settings.py"
CLIENTS: Final = (
    ("RemotingSettings", config.RemotingConfig, "Keywords of `Admin`."),
    ("ProducerSettings", config.ProducerConfig, "Keywords of `Producer`."),
    ("ConsumerSettings", config.ConsumerConfig, "Keywords of `PushConsumer`."),
    ("LitePullConsumerSettings", config.LitePullConsumerConfig, "Keywords of `LitePullConsumer`."),
    ("PullConsumerSettings", config.PullConsumerConfig, "Keywords of `PullConsumer`."),
)
# One consumer that is used in two ways: its settings are those of either.
TAIL: Final = '''

class AsyncConsumerSettings(ConsumerSettings, LitePullConsumerSettings, total=False):
    """Keywords of `AsyncConsumer`; some are only for a listener, some only for iteration."""
'''
HEAD: Final = '''"""Settings of each client as keywords, for type checkers and editors.

Written by ci/settings_types.py from the configurations; `ProducerConfig.of` checks them at runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict

from ordermq.config import (
    {names},
)

if TYPE_CHECKING:
    from ordermq.wall_time import Moment
'''


def text() -> str:
    """Return the module as the configurations have it, formatted."""
    used: set[str] = set()
    classes = "".join(class_of(name, kind, about, used) for name, kind, about in CLIENTS)
    raw = HEAD.format(names=",\n    ".join(sorted(used))) + classes + TAIL
    ruff = Path(sys.executable).with_name("ruff")
    formatted = subprocess.run(
        [ruff, "format", "--stdin-filename", str(MODULE), "-"],
        input=raw,
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


def class_of(name: str, kind: type[Flat], about: str, used: set[str]) -> str:
    """Return the TypedDict of one client, and note the names of `ordermq.config` it uses."""
    # Group and name servers are parameters of their own.
    elsewhere = {one.name for one in fields(ClientConfig)}
    base = "TypedDict"
    if kind is not config.RemotingConfig:
        base = CLIENTS[0][0]
        elsewhere |= config.RemotingConfig.kinds().keys()
    lines = [
        f"    {setting}: {type_of(declared, used)}\n"
        for setting, declared in kind.kinds().items()
        if setting not in elsewhere
    ]
    return f'\n\nclass {name}({base}, total=False):\n    """{about}"""\n\n{"".join(lines)}'


def type_of(declared: str, used: set[str]) -> str:
    """Return a field's type for a keyword: the values of an enumeration are allowed as text."""
    return " | ".join(choices(declared, used))


def choices(declared: str, used: set[str]) -> Iterator[str]:
    for part in declared.split(" | "):
        yield part
        found = getattr(config, part, None)
        if found is not None:
            used.add(part)
        if isinstance(found, type) and issubclass(found, StrEnum):
            yield f"Literal[{', '.join(repr(one.value) for one in found)}]"


if __name__ == "__main__":
    MODULE.write_text(text())
