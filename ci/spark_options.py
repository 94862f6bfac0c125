"""Write the tables of options and of versions in docs/spark.md from the code.

.venv/bin/python ci/spark_options.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ordermq.spark.options import SINK, SOURCE, Setting
from ordermq.spark.versions import FEATURES, VERSIONS

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "spark.md"
TABLES: Final[dict[str, Iterable[Setting]]] = {"source": SOURCE, "sink": SINK}


def table(settings: Iterable[Setting]) -> str:
    """Return the options as a Markdown table."""
    rows = ["| option | type | default | description |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` | {_cell(one.allowed)} | {_default(one)} | {_cell(one.description)} |"
        for one in settings
    ]
    return "\n".join(rows)


def versions() -> str:
    """Return what each version of Spark can do as a Markdown table."""
    numbers = [".".join(map(str, version)) for version in VERSIONS]
    rows = [f"| Spark | {' | '.join(numbers)} | where not |", f"|---|{'---|' * len(numbers)}---|"]
    for one in FEATURES:
        able = ["yes" if version >= one.since else "no" for version in VERSIONS]
        rows.append(f"| {one.name} | {' | '.join(able)} | {one.instead} |")
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the page with the tables of the code."""
    tables = {f"options: {name}": table(settings) for name, settings in TABLES.items()}
    for name, rows in (tables | {"versions": versions()}).items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{rows}\n{end}{after}"
    return page


def _default(setting: Setting) -> str:
    default = setting.default
    if setting.name in ("columns", "ending_offsets"):
        return "all" if setting.name == "columns" else "`latest`"
    if default is None or default in ("", (), frozenset()):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
