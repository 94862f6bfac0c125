"""Use what one extra is for, where nothing else is installed; ci/extras.sh runs it.

python extras_check.py EXTRA          in an environment of its own, in an empty folder
python extras_check.py --list         the extras for users; with --lowest: without those of Spark
python extras_check.py --constraints  pip's constraints to the oldest versions that are allowed
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 60
HINT = re.compile(r"pip install 'ordermq\[[\w,-]+\]'")

# Modules that pages and examples import, by the extra that they need.
PUBLIC: dict[str, tuple[str, ...]] = {
    "base": (
        "ordermq",
        "ordermq.admin",
        "ordermq.audit",
        "ordermq.broker",
        "ordermq.cdc",
        "ordermq.cli.demo.aircraft_log",
        "ordermq.config",
        "ordermq.errors",
        "ordermq.events",
        "ordermq.rocketmq.client",
        "ordermq.spark",
        "ordermq.testing",
    ),
    "cffi": ("ordermq.core.cffi_binding",),
    "cli": ("ordermq.cli.main",),
    "sql": ("ordermq.sql",),
    "postgresql": ("ordermq.cdc.postgresql",),
    "cdc": ("ordermq.cdc", "ordermq.cdc.apply"),
    "metrics": ("ordermq.metrics.prometheus",),
    "otel": ("ordermq.metrics.opentelemetry", "ordermq.metrics.tracing"),
    "faststream": ("ordermq.contrib.faststream",),
    "kombu": ("ordermq.contrib.kombu",),
    "spark": ("ordermq.spark", "pyspark_ordermq"),
}
# Names of lazy packages that need an extra although the package itself does not.
NAMES_OF_EXTRAS = {
    "ordermq.cdc": {
        "ApplyChanges": "cdc",
        "TableStatistics": "cdc",
        "ChangeMetrics": "metrics",
        "PostgreSqlReader": "postgresql",
    },
    "ordermq.spark": {"*": "spark"},
}
# Each is used by a script of this checkout, and not by a program of a user.
OF_CONTRIBUTORS = {
    "demo-cdc", "demo-spark", "dev", "docs", "free-threaded-test", "fuzz", "numba-test",
    "spark-long-test", "spark-test", "test",
}  # fmt: skip
# What is only used where it is asked for; read when ordermq is imported.
ASKED_FOR = {"cffi": ("ORDERMQ_CORE", "cffi"), "uvloop": ("ORDERMQ_EVENT_LOOP", "uvloop")}
LARGE = {"spark", "spark-delta", "spark-state"}  # PySpark alone is half a gigabyte


def require(condition: object, text: str) -> None:
    """Exit with an error unless the condition holds; unlike `assert`, also under -O."""
    if not condition:
        sys.exit(f"ordermq: {text}")


def declared() -> dict[str, list[str]]:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras: dict[str, list[str]] = written["project"]["optional-dependencies"]
    return {"base": written["tool"]["ordermq"]["dependencies"]} | extras


def with_parts(extra: str) -> list[str]:
    """Return an extra and those that it consists of, the smallest first."""
    parts = [
        part
        for line in declared()[extra]
        if (found := re.match(r"ordermq\[([\w,-]+)\]", line))
        for part in found[1].split(",")
    ]
    return list(dict.fromkeys([*(each for part in parts for each in with_parts(part)), extra]))


def lowest(requirement: str) -> str | None:
    """Return pip's constraint to the oldest release that a requirement allows.

    Not every series has a release that ends in 0: of a bound with fewer than three numbers the
    newest release of its minor version is taken.
    """
    found = re.match(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", requirement)
    if not found:
        return None
    name, numbers = found[1], found[2].split(".")
    if len(numbers) > 2:
        return f"{name}=={found[2]}"
    return f"{name}=={'.'.join([*numbers, '0'][:2])}.*"


def constraints() -> list[str]:
    lines = (lowest(line) for each in checked(LARGE) for line in declared()[each])
    return sorted({line for line in lines if line})


def checked(left_out: set[str]) -> list[str]:
    return [each for each in declared() if each not in OF_CONTRIBUTORS | left_out]


# What follows runs where the wheel is installed.


def use_names(module: str, installed: set[str]) -> None:
    """Import a public module and each of its names; what lacks its extra must say which."""
    loaded = importlib.import_module(module)
    extras = NAMES_OF_EXTRAS.get(module, {})
    for name in getattr(loaded, "__all__", ()):
        extra = extras.get(name, extras.get("*", "base"))
        if extra in installed:
            getattr(loaded, name)
        else:
            require_hint(f"{module}.{name}", partial(getattr, loaded, name))


def require_hint(what: str, use: Callable[[], object]) -> None:
    """Require that something works without its extra, or names what to install."""
    try:
        use()
    except (ImportError, ValueError, SystemExit) as error:
        require(HINT.search(str(error)), f"{what} without its extra: {error!r}")


def python(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 5,
        check=False,
    )
    require(done.returncode == 0, f"{arguments} failed\n{done.stdout}\n{done.stderr}")
    return done.stdout


def example(name: str) -> None:
    """Run an example whose first lines ask for this extra."""
    require(python("-I", str(ROOT / "examples" / name)), f"{name} printed nothing")


def round_trip(watch: Callable[[Any, Any], None] = lambda *clients: None, **settings: Any) -> bytes:
    """Send a large message through an embedded broker; return the body that arrives."""
    from ordermq import Message, Producer, PushConsumer
    from ordermq.broker import EmbeddedBroker

    bodies: list[bytes] = []
    done = threading.Event()
    with EmbeddedBroker() as broker:
        servers = broker.name_servers
        consumer = PushConsumer("extras", name_servers=servers, consume_from_where="first_offset")
        producer = Producer("extras", name_servers=servers, **settings)
        consumer.subscribe("extras")

        @consumer.orderly
        def listen(messages: Any, context: Any) -> None:
            bodies.extend(bytes(message.body) for message in messages)
            done.set()

        watch(consumer, producer)
        with producer, consumer:
            producer.send(Message("extras", b"ordermq " * 2_000), sharding_key="k")
            require(done.wait(DEADLINE_S), "no message came")
    require(bodies == [b"ordermq " * 2_000], "the body has changed")
    return bodies[0]


def use_base() -> None:
    for extra, modules in PUBLIC.items():
        for module in modules:
            if extra == "base":
                use_names(module, {"base"})
            else:
                require_hint(module, partial(importlib.import_module, module))
    done = subprocess.run(
        [sys.executable, "-m", "ordermq", "broker"], capture_output=True, text=True, check=False
    )
    require("pip install 'ordermq[cli]'" in done.stderr, f"ordermq broker: {done.stderr!r}")
    round_trip()


def use_cffi() -> None:
    round_trip()
    require(importlib.import_module("ordermq.core").IMPLEMENTATION == "cffi", "another core")


def use_cli() -> None:
    from ordermq.broker import EmbeddedBroker

    Path("steps.csv").write_text("order,step\no-1,placed\no-1,paid\n", encoding="utf-8")
    python("-m", "ordermq", "--help")
    with EmbeddedBroker() as broker:
        at = {"ORDERMQ_NAME_SERVERS": broker.name_servers}
        produce = ["produce", "orders", "steps.csv", "--csv", "--key-column", "order"]
        python("-m", "ordermq", *produce, **at)
        listed = json.loads(python("-m", "ordermq", "topics", "list", "--json", **at))
    require("orders" in json.dumps(listed), f"topics: {listed}")


def use_compression() -> None:
    round_trip(compress_type="lz4")
    round_trip(compress_type="zstd")


def use_pydantic() -> None:
    from pydantic import BaseModel

    from ordermq import PydanticCodec

    class Order(BaseModel):
        number: int

    codec = PydanticCodec(Order)
    require(codec.decode(codec.encode(Order(number=17))).number == 17, "another order")


def use_grpc() -> None:
    """Take the first bytes of a client, as a proxy: headers that hpack has packed."""
    import hpack

    from ordermq import Message, Producer

    asked = threading.Event()

    def answer(server: socket.socket) -> None:
        connection = server.accept()[0]
        with connection:
            received = b""
            while chunk := connection.recv(65_536):
                received += chunk
                frames = received.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                while len(frames) >= 9 + (size := int.from_bytes(frames[:3])):
                    if frames[3] == 1:
                        headers = dict(hpack.Decoder().decode(frames[9 : 9 + size]))
                        if headers[":path"].endswith("/QueryRoute"):
                            asked.set()
                            return
                    frames = frames[9 + size :]

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        producer = Producer("extras", name_servers=f"grpc://127.0.0.1:{server.getsockname()[1]}")
        with producer:
            producer.send_nowait(Message("orders", b"paid"), sharding_key="k")
            require(asked.wait(DEADLINE_S), "nothing asked for a route")


def use_uvloop() -> None:
    round_trip()


def use_sql() -> None:
    example("exactly_once.py")


def use_postgresql() -> None:
    from sqlalchemy import create_engine

    from ordermq import PushConsumer
    from ordermq.broker import EmbeddedBroker
    from ordermq.errors import StoreError
    from ordermq.sql import SqlOffsetStore

    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/shop")
    with EmbeddedBroker() as broker:
        consumer = PushConsumer(
            "extras", name_servers=broker.name_servers, offset_store=SqlOffsetStore(engine)
        )
        consumer.subscribe("orders")
        consumer.orderly(lambda messages, context: None)
        try:
            consumer.start()
        except StoreError as error:
            require("127.0.0.1" in str(error), f"the driver: {error}")
        else:
            require(False, "started without a database")


def use_cdc() -> None:
    """Run the first examples of its page: changes decoded, then applied to SQLite."""
    page = (ROOT / "docs" / "cdc.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    Path("changes.py").write_text(first + second, encoding="utf-8")
    python("-I", "changes.py")


def use_metrics() -> None:
    example("metrics_page.py")


def use_otel() -> None:
    from ordermq.metrics.opentelemetry import OpenTelemetryMetrics
    from ordermq.metrics.tracing import Tracing

    def watch(consumer: Any, producer: Any) -> None:
        metrics, tracing = OpenTelemetryMetrics(), Tracing()
        metrics.watch_consumer(consumer)
        tracing.trace_producer(producer)
        tracing.trace_consumer(consumer)

    round_trip(watch)


def use_faststream() -> None:
    example("orders_faststream.py")


def use_kombu() -> None:
    from kombu.connection import Connection

    from ordermq.broker import EmbeddedBroker

    importlib.import_module("ordermq.contrib.kombu")
    with (
        EmbeddedBroker() as broker,
        Connection(f"ordermq://{broker.name_servers}/") as connection,  # type: ignore[no-untyped-call]
    ):
        queue = connection.SimpleQueue("bills")
        queue.put({"number": 17})
        message = queue.get(timeout=DEADLINE_S)
        require(message.payload == {"number": 17}, f"kombu: {message.payload}")
        message.ack()
        queue.close()


def use_celery() -> None:
    example("tasks_celery.py")


def use_run() -> None:
    """Supervise a process until its consumer has had what was sent."""
    from ordermq import Message, Producer
    from ordermq.broker import EmbeddedBroker

    Path("billing.py").write_text(
        "from ordermq import PushConsumer\n"
        "consumer = PushConsumer('billing', consume_from_where='first_offset')\n"
        "consumer.subscribe('orders')\n"
        "@consumer.orderly\n"
        "def bill(messages, context):\n"
        "    print('billed', flush=True)\n"
        "    consumer.stop()\n",
        encoding="utf-8",
    )
    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            producer.send(Message("orders", b"paid"), sharding_key="k")
        ran = python(
            "-m", "ordermq", "run", "billing:consumer", "--processes", "1",
            "--metrics-port", "0", "--reload", ORDERMQ_NAME_SERVERS=broker.name_servers,
        )  # fmt: skip
    require("billed" in ran, f"ordermq run: {ran!r}")


def use_report() -> None:
    for name in ("matplotlib", "pandas"):
        importlib.import_module(name)


def use_arrow() -> None:
    example("readings_in_pandas.py")


def use_spark() -> None:
    """Read a topic with Spark, if there is a Java to run it."""
    use_names("ordermq.spark", {"base", "spark"})
    if shutil.which("java") is None:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark starts the python3 of PATH otherwise
    from pyspark.sql import SparkSession

    from ordermq import Message, Producer
    from ordermq.broker import EmbeddedBroker

    with EmbeddedBroker() as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            producer.send_many((Message("orders", b"%d" % n), "k") for n in range(10))
        spark = SparkSession.builder.master("local[1]").getOrCreate()
        options = {"name_servers": broker.name_servers, "topic": "orders"}
        rows = spark.read.format("ordermq").options(**options).load().collect()
        spark.stop()
    require(len(rows) == 10, f"Spark read {len(rows)} rows")


def use_spark_state() -> None:
    importlib.import_module("google.protobuf")


def use_spark_delta() -> None:
    importlib.import_module("deltalake")


def use_demo() -> None:
    picture = Path("flights", "owners.png")
    options = ["--limit", "2000", "--seconds", "5", "--out", str(picture.parent), "--json"]
    python("-m", "ordermq", "demo", *options)
    require(picture.stat().st_size > 10_000, f"no picture at {picture}")


USES: dict[str, Callable[[], None]] = {
    name.removeprefix("use_").replace("_", "-"): use
    for name, use in list(globals().items())
    if name.startswith("use_") and name != "use_names"
}


def check(extra: str) -> None:
    parts = with_parts(extra)
    if extra in ASKED_FOR:
        os.environ.__setitem__(*ASKED_FOR[extra])
    for part in parts:
        for module in PUBLIC.get(part, ()):
            importlib.import_module(module)
    for part in parts:
        USES[part]()
    print(f"ordermq: {extra} works alone ({', '.join(parts)})")


def main() -> None:
    match sys.argv[1:]:
        case ["--list", *bounds]:
            print(*checked(LARGE if bounds else set()), sep="\n")
        case ["--constraints"]:
            print(*constraints(), sep="\n")
        case [extra] if extra in USES:
            check(extra)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
