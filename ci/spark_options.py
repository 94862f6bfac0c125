"""Write the tables of options in docs/spark.md from the code that reads them.

.venv/bin/python ci/spark_options.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ordermq.spark.options import SINK, SOURCE, Setting

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


def filled(page: str) -> str:
    """Return the page with the tables of the code."""
    for name, settings in TABLES.items():
        before, begin, rest = page.partition(f"<!-- options: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{table(settings)}\n{end}{after}"
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
