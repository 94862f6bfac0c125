import os
import subprocess
import sys

import pytest

REPORT = "from ordermq import core; print(core.IMPLEMENTATION, core.ProcessQueue.__module__)"
MODULES = {
    "cython": "ordermq.core._cython",
    "cffi": "ordermq.core.cffi_binding",
    "reference": "ordermq.core.reference",
}


def run(code, forced=None, hidden=()):
    """Run in a fresh interpreter in which the modules `hidden` do not import."""
    hide = "".join(f"sys.modules[{module!r}] = None; " for module in hidden)
    environment = {k: v for k, v in os.environ.items() if k != "ORDERMQ_CORE"}
    if forced is not None:
        environment["ORDERMQ_CORE"] = forced
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}{code}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("name", MODULES)
def test_a_forced_core_is_the_one(name):
    done = run(REPORT, forced=name)
    assert done.stdout.split()[:1] == [name], done.stderr
    assert done.stderr == ""


def test_cython_comes_first():
    done = run(REPORT)
    assert (done.stdout.split()[0], done.stderr) == ("cython", "")


def test_cffi_comes_second_without_a_word():
    done = run(REPORT, hidden=[MODULES["cython"]])
    assert (done.stdout.split()[0], done.stderr) == ("cffi", "")


@pytest.mark.parametrize(("name", "has_engine"), [("cython", True), ("reference", False)])
def test_the_engine_is_of_the_core_for_cpython_alone(name, has_engine):
    code = "from ordermq import core; print(core.HAS_ENGINE, hasattr(core, 'SendRun'))"
    done = run(code, forced=name)
    assert (done.stdout.split(), done.stderr) == ([str(has_engine)] * 2, "")


def test_a_class_of_the_engine_is_said_to_be_missing_where_it_is():
    done = run("from ordermq import core; core.PullStream", forced="reference")
    assert "AttributeError: the reference core has no engine, so no PullStream" in done.stderr


def test_falling_back_on_the_reference_is_loud():
    done = run(REPORT, hidden=[MODULES["cython"], "ordermq.core._cffi"])
    assert done.stdout.split()[0] == "reference"
    assert done.stderr.count("RuntimeWarning") == 1
    assert "cython:" in done.stderr
    assert "cffi:" in done.stderr


@pytest.mark.parametrize("name", ["cython", "cffi"])
def test_a_forced_core_that_does_not_load_raises(name):
    done = run(REPORT, forced=name, hidden=[MODULES["cython"], "ordermq.core._cffi"])
    assert done.returncode == 1
    assert f"ordermq.errors.ConfigError: ORDERMQ_CORE={name}: " in done.stderr


def test_who_asks_for_cffi_where_it_is_missing_is_told_what_to_install():
    done = run(REPORT, forced="cffi", hidden=["_cffi_backend"])
    *_, said = done.stderr.splitlines()
    assert said.startswith("ordermq.errors.ConfigError: ORDERMQ_CORE=cffi: ")
    assert said.endswith(": run pip install 'ordermq[cffi]'")
    assert done.stderr.count("Traceback") == 1


def test_falling_back_on_the_reference_tells_what_cffi_needs():
    done = run(REPORT, hidden=[MODULES["cython"], "_cffi_backend"])
    assert done.stdout.split()[0] == "reference"
    assert "run pip install 'ordermq[cffi]'" in done.stderr


def test_the_core_for_cpython_needs_no_cffi():
    done = run(REPORT, hidden=["_cffi_backend", "cffi"])
    assert (done.stdout.split()[0], done.stderr) == ("cython", "")


def test_an_unknown_core_is_refused():
    done = run(REPORT, forced="java")
    assert "ORDERMQ_CORE='java': expected one of cython, cffi, reference" in done.stderr
