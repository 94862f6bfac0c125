"""Libraries of extras, where they are not installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, sys
for module, library in (
    ("ordermq.cdc.metrics", "prometheus_client"),
    ("ordermq.cdc.postgresql", "psycopg"),
    ("ordermq.sql", "sqlalchemy"),
    ("ordermq.metrics.prometheus", "prometheus_client"),
    ("ordermq.metrics.opentelemetry", "opentelemetry"),
    ("ordermq.metrics.tracing", "opentelemetry"),
    ("ordermq.contrib.faststream.fastapi", "fastapi"),
    ("ordermq.contrib.faststream.fastapi", "faststream"),
    ("ordermq.cli.demo", "click"),
    ("ordermq.contrib.kombu", "kombu"),
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
        "prometheus_client run pip install 'ordermq[metrics]'",
        "psycopg run pip install 'ordermq[postgresql]'",
        "sqlalchemy run pip install 'ordermq[sql]'",
        "prometheus_client run pip install 'ordermq[metrics]'",
        "opentelemetry run pip install 'ordermq[otel]'",
        "opentelemetry run pip install 'ordermq[otel]'",
        "fastapi.datastructures run pip install 'ordermq[faststream]' fastapi",
        "faststream run pip install 'ordermq[faststream]'",
        "click run pip install 'ordermq[demo]'",
        "kombu.transport run pip install 'ordermq[kombu]'",
    ]
