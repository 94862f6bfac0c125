"""Check an installed wheel; ci/wheel_check.sh runs it outside of the checkout."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import threading
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import ordermq
from ordermq import Message, Producer, PushConsumer, core
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.events import History

CHECKOUT = Path(__file__).resolve().parents[1]
MESSAGES = 1000
KEYS = 10
DEADLINE_S = 60


def require(condition: object, text: str) -> None:
    """Exit with an error unless the condition holds; unlike `assert`, also under -O."""
    if not condition:
        sys.exit(f"ordermq: wheel check: {text}")


def check_files() -> Path:
    package = Path(ordermq.__file__).resolve().parent
    require(package.parent != CHECKOUT, f"{package} is the checkout, not an installed wheel")
    for name in ("py.typed", "core/_cffi.pyi"):
        require((package / name).is_file(), f"{package / name} is missing")
    return package


def check_native(name: str) -> None:
    module = importlib.import_module(f"ordermq.core.{name}")
    loader = module.__spec__ and module.__spec__.loader
    require(isinstance(loader, ExtensionFileLoader), f"{module} is no native module")


def check_core() -> None:
    require(core.IMPLEMENTATION == "cython", f"the core is {core.IMPLEMENTATION}, not cython")
    check_native("_cython")


def check_dependencies() -> None:
    """Require that the base install needs orjson, where it can be had, and no other package."""
    needed = [line for line in requires("ordermq") or [] if "extra ==" not in line]
    names = [re.split(r"[^\w-]", line)[0] for line in needed]
    expected = [] if sysconfig.get_config_var("Py_GIL_DISABLED") else ["orjson"]
    require(names == expected, f"the base install needs {needed}")


def check_refusal() -> None:
    """Without cffi, require that who asks for its core is told what to install."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import ordermq.core"],
        env=os.environ | {"ORDERMQ_CORE": "cffi"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = "run pip install 'ordermq[cffi]'"
    require(done.returncode == 1 and told in done.stderr, f"without cffi: {done.stderr!r}")


def check_header() -> Path:
    folder = core.include_dir()
    package = Path(ordermq.__file__).resolve().parent
    require(folder.is_relative_to(package), f"the header is in {folder}, not in {package}")
    header = (folder / "ordermq.h").read_text(encoding="utf-8")
    require("OMQ_OK" in header and list(folder.glob("*.c")), f"no C core in {folder}")
    return folder / "ordermq.h"


def check_binding(path: Path) -> None:
    """With cffi, require that its core has what the header declares."""
    check_native("_cffi")
    header = path.read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(omq_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)))
    lib = importlib.import_module("ordermq.core.cffi_binding").lib
    offered = {name for name in dir(lib) if name.startswith("omq_")}
    require(len(declared) > 40, f"{path} declares {len(declared)} functions")
    require(declared == offered, f"header and cffi differ in {sorted(declared ^ offered)}")


def round_trip(folder: Path) -> None:
    """Send, consume, and audit the history of broker and consumer."""
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def listen(messages: Any, context: Any) -> None:
        seen.extend((message.sharding_key, int(bytes(message.body))) for message in messages)
        if len(seen) >= MESSAGES:
            done.set()

    files = [folder / "broker.jsonl", folder / "consumer.jsonl"]
    with EmbeddedBroker(folder / "wheel.db", history=History(files[0], "broker")) as broker:
        with Producer("wheel", name_servers=broker.name_servers) as producer:
            for number in range(MESSAGES):
                message = Message("wheel-check", str(number).encode())
                producer.send(message, sharding_key=f"key-{number % KEYS}")
        consumer = PushConsumer(
            "wheel-check",
            name_servers=broker.name_servers,
            consume_from_where="first_offset",
            consume_thread_count=1,  # so that `seen` needs no lock
            history=files[1],
        )
        consumer.subscribe("wheel-check")
        consumer.orderly(listen)
        with consumer:
            require(done.wait(DEADLINE_S), f"{len(seen)} of {MESSAGES} in {DEADLINE_S} s")
    for key in range(KEYS):
        numbers = [number for name, number in seen if name == f"key-{key}"]
        wanted = list(range(key, MESSAGES, KEYS))
        require(numbers == wanted, f"key-{key} came as {numbers[:20]}...")
    report = audit(files, start_offsets=0)
    require(report.ok, f"the audit found {report.violations}")


def main() -> None:
    package = check_files()
    check_core()
    check_dependencies()
    header = check_header()
    has_cffi = importlib.util.find_spec("_cffi_backend") is not None
    if has_cffi:
        check_binding(header)
    else:
        check_refusal()
    round_trip(Path(sys.argv[1]))
    version = ".".join(map(str, sys.version_info[:3]))
    kind = "with cffi" if has_cffi else "without cffi"
    print(
        f"ordermq: wheel check passed on Python {version}, {kind}: {MESSAGES} messages, {package}"
    )


if __name__ == "__main__":
    main()
