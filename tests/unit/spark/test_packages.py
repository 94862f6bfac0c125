"""Packages that are missing on the driver or an executor: one error says which, and where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Programs that begin in a Python without some packages, as an executor's may be.
_WITHOUT = """
import os, sys, types
from ordermq.errors import ConfigError

class Without:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in {missing!r}
        return None if missing else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)

def pretend_spark():
    for name in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
        sys.modules[name] = types.ModuleType(name)
    class DataSource:
        def __init__(self, options): self.options = options
    sys.modules["pyspark"].__version__ = "4.3.0"
    sys.modules["pyspark.sql.datasource"].DataSource = DataSource

def show(action):
    try:
        action()
    except ConfigError as error:
        print(error)
    else:
        print("no error")
"""


def shown(program: str, *missing: str) -> str:
    """Return what a program prints in a Python without these packages."""
    text = _WITHOUT.replace("{missing!r}", repr(set(missing))) + program
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def expected(what: str) -> str:
    return f"{what} missing in {sys.executable} on {os.uname().nodename}: run pip install " \
        "'ordermq[spark]' with it"  # fmt: skip


@pytest.mark.parametrize(
    "name", ["apply_in_order", "ordered_udf", "LagListener", "by_target_queue", "stored_states"]
)
def test_a_name_of_the_bridge_says_what_to_install_where_pyspark_is_missing(name: str) -> None:
    program = f"import ordermq.spark\nshow(lambda: ordermq.spark.{name})"
    if name != "stored_states":  # which needs pyarrow only
        assert shown(program, "pyspark").startswith(expected("pyspark is"))
    assert shown(program, "pyarrow", "numpy").startswith(expected("numpy and pyarrow are"))
    assert "driver and each executor" in shown(program, "pyarrow")


def test_the_format_says_what_to_install_where_pyspark_is_missing() -> None:
    program = "import ordermq.spark\nshow(lambda: __import__('pyspark_ordermq'))"
    assert shown(program, "pyspark").startswith(expected("pyspark is"))
    program = "import ordermq.spark\nshow(lambda: ordermq.spark.register(None))"
    assert shown(program, "pyspark").startswith(expected("pyspark is"))


@pytest.mark.parametrize("call", ["schema()", "writer(None, False)", "streamWriter(None, False)"])
def test_the_format_says_so_first_where_its_python_lacks_pyarrow(call: str) -> None:
    program = (
        "pretend_spark()\nfrom pyspark_ordermq import DefaultSource\n"
        f"show(lambda: DefaultSource({{}}).{call})\nprint(os.environ['SPARK_HIDE_TRACEBACK'])"
    )
    text, hides = shown(program, "pyarrow").splitlines()
    assert text.startswith(expected("pyarrow is"))
    assert hides == "1", "Spark shows the text, and no traceback before it"


@pytest.mark.parametrize("room", ["source.queue_reader", "stages.stage_invocation", "sink.writer"])
def test_an_executor_that_unpickles_something_of_a_module_says_what_to_install(room: str) -> None:
    program = f"show(lambda: __import__('ordermq.spark.{room}'))"
    assert shown(program, "pyarrow").startswith(expected("pyarrow is"))


def test_an_executor_without_pandas_says_so_where_a_stage_needs_it_only() -> None:
    program = (
        "from ordermq.spark.stages.stage_invocation import StageInvocation\n"
        "spec = types.SimpleNamespace(engine={!r}, stage='s', on_failure=None)\n"
        "show(lambda: StageInvocation(spec))"
    )
    assert shown(program.format("pandas"), "pandas").startswith(expected("pandas is"))
    with pytest.raises(AssertionError, match=r"pyspark"):  # which it asks for its task
        shown(program.format("arrow"), "pandas", "pyspark")
