"""`import ordermq` loads next to nothing; each of its names loads what it needs.

Held by which modules are loaded, not by time; `bench/startup.py` measures it.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ordermq

INIT = Path(ordermq.__file__)
# Modules of mail, archives and networks that a client needs rarely, or never.
RARE = {"importlib.metadata", "email", "zipfile", "tempfile", "csv", "urllib.request", "http"}
EXTRAS = {"numpy", "pandas", "pyarrow", "sqlalchemy", "pydantic", "click", "rich", "pytest"}


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a new interpreter."""
    program = (
        "import sys, json; before = set(sys.modules)\n"
        f"{statement}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    # Without site, which loads modules for a package in its checkout: they would not be seen here.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    return set(json.loads(done.stdout))


def rooms_of(modules: set[str]) -> set[str]:
    return {".".join(name.split(".")[:2]) for name in modules if name.startswith("ordermq.")}


def test_the_package_alone_loads_next_to_nothing() -> None:
    loaded = loaded_by("import ordermq")
    assert rooms_of(loaded) == {
        "ordermq.background_writer", "ordermq.lazy_imports", "ordermq.loggers", "ordermq.threads",
        "ordermq.version",
    }  # fmt: skip
    loaded -= loaded_by("import logging")  # from Python 3.14.8 on it loads dataclasses
    assert not loaded & {"asyncio", "ssl", "dataclasses", "inspect", "json", "orjson", *RARE}


def test_a_message_loads_no_client() -> None:
    loaded = loaded_by("from ordermq import Message, MessageView, SendReceipt")
    assert rooms_of(loaded) <= {
        "ordermq.background_writer", "ordermq.lazy_imports", "ordermq.loggers", "ordermq.threads",
        "ordermq.version", "ordermq.errors", "ordermq.wall_time", "ordermq.core", "ordermq.model",
        "ordermq.json_text", "ordermq.standard_json",
    }  # fmt: skip
    assert not loaded & {"asyncio", "ssl", "random", *RARE}


@pytest.mark.parametrize(
    ("name", "elsewhere"), [("Producer", "consumer"), ("PushConsumer", "producer")]
)
def test_a_client_loads_neither_the_other_nor_what_it_rarely_needs(
    name: str, elsewhere: str
) -> None:
    loaded = loaded_by(f"from ordermq import {name}")
    assert f"ordermq.{elsewhere}" not in rooms_of(loaded)
    assert not loaded & {*RARE, *EXTRAS}
    assert not rooms_of(loaded) & {"ordermq.broker", "ordermq.spark", "ordermq.cli", "ordermq.sql"}
    # For type checkers, and by far the slowest to define.
    assert not loaded & {"ordermq.core.contract", "ordermq.config.settings"}
    # For few: who asks for its health, is traced, or is sent one message by a tool.
    assert not loaded & {
        "ordermq.health", "ordermq.client.trace", "ordermq.remoting.trace",
        "ordermq.model.stored_message",
    }  # fmt: skip
    # For those who sign, have namespaces, choose queues or members by a hash, or fork.
    assert not loaded & {
        "hashlib", "hmac", "random", "ctypes", "ordermq.remoting.signing",
        "ordermq.remoting.namespaces", "ordermq.remoting.rare_headers",
    }  # fmt: skip
    # For those who give a URL or an address of version 6, or read or write files.
    known = loaded_by("import logging")  # from Python 3.15 on it loads pathlib
    assert not (loaded - known) & {"bisect", "ipaddress", "pathlib", "urllib.parse"}
    # For another kind of listener, or for offsets that are not the brokers'.
    assert not loaded & {
        *(f"ordermq.consumer.dispatch.{kind}" for kind in
          ("concurrent", "key_ordered", "orderly", "parked_keys", "transactional_listener")),
        *(f"ordermq.consumer.offsets.{kind}" for kind in
          ("local_offsets", "offset_store", "store_offsets")),
    }  # fmt: skip
    # For those who compress bodies, have codecs, hooks of listeners, transactions or tools.
    assert not loaded & {
        "zlib", "ordermq.model.codec", "ordermq.consumer.hooks", "ordermq.client.admin_api",
        "ordermq.remoting.admin_bodies", "ordermq.model.transaction_receipt",
    }  # fmt: skip
    # Settings of others, each a dozen classes that are made at import.
    assert not loaded & {
        f"ordermq.config.{kind}" for kind in ("broker", "pull_consumers", elsewhere)
    }


def test_an_address_loads_no_codec_of_international_names() -> None:
    look_up = (
        "from ordermq.config.checks import split_address\n"
        "from ordermq.remoting.dialer import look_up\n"
        "assert look_up(*split_address('{host}:9876')).result(10)"
    )
    assert "encodings.idna" not in loaded_by(look_up.format(host="127.0.0.1"))
    assert "encodings.idna" not in loaded_by(look_up.format(host="localhost"))


# The decorator of dataclasses compiles the methods of each class, in five to ten times the time of
# a `Record`: that is for what is made per message. A named tuple takes three times as long.
PER_MESSAGE = {
    "Message", "PendingMessage", "SendCall", "SendReceipt", "SendRequest",
}  # fmt: skip
MOST_NAMED_TUPLES = {"Producer": 3, "PushConsumer": 8}
LOOK_UP_CLASSES = """
import json, sys
from ordermq import {name}
made = {{
    each
    for module in list(sys.modules.values()) if module.__name__.startswith("ordermq.")
    for each in vars(module).values()
    if isinstance(each, type) and each.__module__.startswith("ordermq.")
}}
compiled = {{
    each for each in made
    if "__dataclass_params__" in vars(each) and each.__dataclass_params__.init
}}
tuples = {{each for each in made if issubclass(each, tuple) and hasattr(each, "_fields")}}
print(json.dumps([sorted(each.__name__ for each in kind) for kind in (compiled, tuples)]))
"""


@pytest.mark.parametrize("name", MOST_NAMED_TUPLES)
def test_a_client_defines_few_classes_that_take_long(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP_CLASSES.format(name=name)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    compiled, tuples = json.loads(done.stdout)
    assert set(compiled) <= PER_MESSAGE
    assert len(tuples) <= MOST_NAMED_TUPLES[name], tuples


def test_every_name_is_there_and_of_one_home() -> None:
    tree = ast.parse(INIT.read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and not node.orelse][:1]
    typed = {
        alias.name: node.module.removeprefix("ordermq.")
        for node in ast.walk(checked)
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "ordermq"
        for alias in node.names
    }
    rooms = {
        alias.name
        for node in ast.walk(checked)
        if isinstance(node, ast.ImportFrom) and node.module == "ordermq"
        for alias in node.names
    }
    homes = vars(ordermq)["_HOMES"]
    assert typed == {name: home for home, names in homes.items() for name in names}
    assert rooms == vars(ordermq)["_ROOMS"]
    assert set(ordermq.__all__) == {*typed, "__version__"}
    for name in [*ordermq.__all__, *rooms]:
        assert getattr(ordermq, name) is not None
        assert name in dir(ordermq)


def test_a_name_that_is_none_is_no_attribute() -> None:
    assert not hasattr(ordermq, "Prodcer")
    loaded_by("import ordermq; ordermq.errors.Fenced; ordermq.config.ProducerConfig")
    loaded_by("from ordermq import *; Producer, PushConsumer, Retry")
