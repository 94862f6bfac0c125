"""docs/spark.md says what the code reads."""

import runpy
from pathlib import Path

from ordermq.model.arrow import COLUMNS

ROOT = Path(__file__).resolve().parents[3]


def test_the_option_tables_of_the_page_match_the_code():
    script = runpy.run_path(str(ROOT / "ci" / "spark_options.py"))
    page = script["PAGE"].read_text()
    assert page == script["filled"](page), "run ci/spark_options.py"
    assert "| `starting_offsets` |" in page


def test_every_column_is_on_the_page():
    page = (ROOT / "docs" / "spark.md").read_text()
    columns = page.split("## Columns")[1].split("## Options")[0]
    assert [name for name in (*COLUMNS, "lease") if f"`{name}`" not in columns] == []
