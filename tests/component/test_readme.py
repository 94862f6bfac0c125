"""The first examples a user meets run as they stand: README, README.zh-CN, getting started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.component.docs_examples import DOCS, examples, run_example
from tests.waiting import killed_on_error

README = DOCS.parent / "README.md"


def test_the_example_prints_its_three_messages_in_order_and_ends_on_sigint(
    tmp_path: Path,
) -> None:
    (code,) = examples(README.read_text())
    script = tmp_path / "example.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, "-u", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert errors == ""
    assert [line.split("b'")[1].split("'")[0] for line in lines] == ["placed", "paid", "shipped"]
    assert all(line.startswith("o-17 ") for line in lines)


def test_the_readme_in_chinese_has_the_same_example() -> None:
    chinese = README.with_name("README.zh-CN.md").read_text()
    assert examples(chinese) == examples(README.read_text())


def test_the_example_of_getting_started_prints_its_steps(tmp_path: Path) -> None:
    (code,) = examples((DOCS / "getting-started.md").read_text())
    done = run_example(code, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "placed paid shipped\n")


def test_the_terminals_of_getting_started_share_the_rows_of_the_table(tmp_path: Path) -> None:
    page = (DOCS / "getting-started.md").read_text()
    broker, consume, produce = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    rows: queue.Queue[str] = queue.Queue()

    def terminal(command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command.strip()}"],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(consumer: subprocess.Popen[str]) -> None:
        assert consumer.stdout is not None
        for line in consumer.stdout:
            rows.put(line)

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(killed_on_error(terminal(f"{broker.strip()} --port 0")))
        assert first.stdout is not None
        address = re.search(r"listening on ([\d.:]+);", first.stdout.readline())
        assert address
        environment["ORDERMQ_NAME_SERVERS"] = address[1]
        consumers = [stack.enter_context(killed_on_error(terminal(consume))) for _ in range(2)]
        readers = [threading.Thread(target=read, args=(each,)) for each in consumers]
        for reader in readers:
            reader.start()
        subprocess.run(["bash", "-c", produce], cwd=tmp_path, env=environment, check=True)
        printed = [rows.get(timeout=60).split("\t") for _ in range(4)]
        for consumer, reader in zip(consumers, readers, strict=True):
            consumer.send_signal(signal.SIGINT)
            reader.join()
        first.send_signal(signal.SIGINT)
        first.stdout.read()
    # One that still starts when it is asked to leave ends as by the signal.
    assert {each.returncode for each in consumers} <= {0, -signal.SIGINT}
    assert first.returncode == 0
    steps = {
        key: [json.loads(body)["step"] for _, _, of, body in printed if of == key]
        for key in ("o-1", "o-2")
    }
    assert steps == {"o-1": ["placed", "paid"], "o-2": ["placed", "paid"]}
