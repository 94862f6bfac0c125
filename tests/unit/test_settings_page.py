"""docs/settings.md says what the code takes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ordermq.config.foreign_names import FOREIGN_NAMES

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "ci" / "settings_page.py")
)
SETTINGS = {
    f"{group.__name__}.{one.name}": one
    for group, _ in SCRIPT["GROUPS"]
    for one in SCRIPT["settings_of"](group)
}


def test_the_page_is_up_to_date() -> None:
    page = SCRIPT["PAGE"].read_text()
    assert page == SCRIPT["filled"](page), "run ci/settings_page.py"
    assert "| `pull_batch_size` | `32` |  | 1..1_024 |" in page


def test_the_pages_for_readers_of_other_clients_have_each_name_that_an_error_explains() -> None:
    pages = {page.name: (page.read_text(), clients) for page, clients in SCRIPT["NAME_PAGES"]}
    for page, clients in pages.values():
        assert page == SCRIPT["filled_with_names"](page, clients), "run ci/settings_page.py"
    assert "| `auto_offset_reset` | `consume_from_where` |" in pages["from-kafka.md"][0]
    assert "| `namesrvAddr` | `name_servers` |" in pages["from-java.md"][0]
    assert "| `prefetch_count` | `pull_threshold_for_queue` |" in pages["celery.md"][0]
    told = {client for _, clients in pages.values() for client in clients}
    for name, each in FOREIGN_NAMES.items():
        assert any(client in each.client for client in told), name


def test_every_setting_says_what_it_does() -> None:
    assert [name for name, one in SETTINGS.items() if not one.meaning] == []


def test_every_java_name_belongs_to_a_setting() -> None:
    assert set(SCRIPT["JAVA"]) - set(SETTINGS) == set()


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.endswith(("_ms", "_bytes"))])
def test_a_quantity_has_a_range(name: str) -> None:
    assert ".." in SETTINGS[name].allowed
