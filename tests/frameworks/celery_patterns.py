"""Celery's own integration tests with `ordermq://`; ci/frameworks.sh runs them.

They are in Celery's sdist, as the package `t`. Results are in Redis, as they expect. Left out are
tests of Redis and of databases themselves, of log records, and of Celery without a broker.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from t.integration.test_canvas import (
    test_chain,
    test_chord,
    test_group,
    test_link_error,
    test_result_set,
    test_signature_serialization,
    test_stamping_mechanism,
    test_xmap_xstarmap,
)
from t.integration.test_inspect import inspect, test_Inspect
from t.integration.test_tasks import (
    test_apply_tasks,
    test_class_based_tasks,
    test_task_redis_result_backend,
    test_task_replacement,
    test_tasks,
)

import ordermq.contrib.kombu  # noqa: F401 - it registers ordermq://

__all__ = [  # what pytest finds here
    "inspect",
    "test_Inspect",
    "test_apply_tasks",
    "test_chain",
    "test_chord",
    "test_class_based_tasks",
    "test_group",
    "test_link_error",
    "test_result_set",
    "test_signature_serialization",
    "test_stamping_mechanism",
    "test_task_redis_result_backend",
    "test_task_replacement",
    "test_tasks",
    "test_xmap_xstarmap",
]


@pytest.fixture(scope="session")
def celery_config(name_servers: str) -> dict[str, Any]:
    return {
        "broker_url": f"ordermq://{name_servers}",
        "result_backend": "redis://{REDIS_HOST}:{REDIS_PORT}".format_map(os.environ),
        "result_extended": True,
        "task_create_missing_queues": False,
    }
