"""Libraries of extras that are not installed, and a core that was compiled for other files."""

from __future__ import annotations

import os
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
        "kombu.transport run pip install 'ordermq[kombu]'",
    ]


def test_a_core_of_another_version_is_told_instead_of_a_name_that_is_missing() -> None:
    program = """
import sys, types
sys.modules["ordermq.core._cython"] = types.ModuleType("ordermq.core._cython")
from ordermq import Admin
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "ORDERMQ_CORE": "cython"},
    )
    told = done.stderr.splitlines()[-1]
    assert told.startswith("ImportError: ordermq.admin.admin: module 'ordermq.core._cython' has no")
    assert told.endswith("build it again: pip install --editable .")
