"""Names that are imported on use, and libraries of extras where they are not installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, sys
for module, library in (
    ("ordermq.sql", "sqlalchemy"),
    ("ordermq.metrics.prometheus", "prometheus_client"),
    ("ordermq.metrics.opentelemetry", "opentelemetry"),
    ("ordermq.metrics.tracing", "opentelemetry"),
):
    sys.modules[library] = None
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(error.name, str(error).rpartition(": ")[2])
"""


def test_who_imports_what_an_extra_has_is_told_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "sqlalchemy run pip install 'ordermq[sql]'",
        "prometheus_client run pip install 'ordermq[metrics]'",
        "opentelemetry run pip install 'ordermq[otel]'",
        "opentelemetry run pip install 'ordermq[otel]'",
    ]


COLLECTING = """
import gc
import ordermq
for is_enabled, name in ((True, "Producer"), (True, "PushConsumer"), (False, "LitePullConsumer")):
    (gc.enable if is_enabled else gc.disable)()
    runs = []
    gc.callbacks.append(lambda phase, about: runs.append(phase))
    getattr(ordermq, name)
    print(runs.count("start") <= 2, gc.isenabled())  # what was put off follows at once
"""


def test_the_garbage_collector_rests_during_an_import_and_is_as_it_was_behind_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["True True", "True True", "True False"]
