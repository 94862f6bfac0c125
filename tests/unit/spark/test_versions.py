"""The features that older versions of Spark lack: their errors, and what asks for them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import ordermq.spark
from ordermq.errors import ConfigError
from ordermq.spark.versions import FEATURES, FORMAT, Feature, is_before, require

ROOT = Path(__file__).resolve().parents[3]


def install(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = ModuleType("pyspark")
    spark.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", spark)


def test_on_spark_3_5_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    install("3.5.9", monkeypatch)
    with pytest.raises(ConfigError) as caught:
        ordermq.spark.register(None)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert "needs Spark 4.0 or later, and this is 3.5.9: upgrade Spark" in text


def test_a_stage_that_spark_3_5_cannot_import_says_so_in_the_same_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ordermq.spark.stages.ordered_udf", None)
    monkeypatch.delitem(vars(ordermq.spark), "ordered_udf", raising=False)
    install("3.5.9", monkeypatch)
    with pytest.raises(ConfigError, match=r"or later, and this is 3\.5\.9: upgrade Spark"):
        ordermq.spark.ordered_udf  # noqa: B018
    install("4.3.0", monkeypatch)
    with pytest.raises(ImportError, match="ordered_udf"):
        ordermq.spark.ordered_udf  # noqa: B018


@pytest.mark.parametrize("feature", FEATURES, ids=lambda one: one.name)
def test_a_feature_is_refused_before_its_version_and_allowed_from_it_on(
    feature: Feature, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor = feature.since
    install(f"{major}.{minor}.0.dev1", monkeypatch)
    require(feature)
    install("3.5.9", monkeypatch)
    with pytest.raises(ConfigError, match=f"needs Spark {major}.{minor} or later") as caught:
        require(feature)
    assert feature.instead.replace("`", "") in str(caught.value)


def test_versions_compare_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    install("4.10.0", monkeypatch)
    assert not is_before((4, 2))
    assert is_before((5, 0))


def test_the_extra_asks_for_the_first_version_with_the_format() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (asked,) = (one for one in project["optional-dependencies"]["spark"] if "pyspark" in one)
    assert asked == "pyspark>=" + ".".join(map(str, FORMAT.since))


def test_only_one_file_reads_the_version_of_spark() -> None:
    files = [*(ROOT / "ordermq").rglob("*.py"), *(ROOT / "pyspark_ordermq").glob("*.py")]
    readers = {
        path.name
        for path in files
        if re.search(r"pyspark\.(__version__|version)", path.read_text())
    }
    assert readers == {"versions.py"}
