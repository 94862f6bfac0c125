"""The cells of docs/notebooks.md run as a kernel runs them: each a task of one loop, names kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.component.docs_examples import DOCS, examples

# ipykernel compiles cells so; the loop runs between them, too.
KERNEL = """
import ast
import asyncio
import json
import sys


async def run(cell):
    code = compile(cell, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, names)
    if found is not None:
        await found


names = {"__name__": "__main__"}
loop = asyncio.new_event_loop()
for cell in json.loads(sys.argv[1]):
    loop.run_until_complete(loop.create_task(run(cell)))
loop.close()
"""
LOOK = """
from ordermq.testing import wait_until_consumed

wait_until_consumed(servers, "live", "readings")
print(len(seen), "of", len(live.assigned_queues()) > 0)
"""
END = "live.close()\nbroker.close()"


def cells_of_page() -> list[str]:
    page = (DOCS / "notebooks.md").read_text()
    return examples(page.partition("## Spark in a notebook")[0])


def run(cells: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.py").write_text(KERNEL)
    return subprocess.run(
        [sys.executable, "-W", "error", "kernel.py", json.dumps(cells)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_cells_run_one_after_the_other_and_again(tmp_path: Path) -> None:
    send, read, notes, live = cells_of_page()
    # The one that leaves a consumer running a second time, too: it closes the first.
    done = run([send, read, read, notes, live, LOOK, live, END], tmp_path)
    counts = "[34, 33, 33]\n"
    assert done.stdout == f"{counts}{counts}['calibrated']\n100 of True\n", done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_a_cell_without_the_close_is_told_of_the_first_consumer(tmp_path: Path) -> None:
    send, _, _, live = cells_of_page()
    careless = live.partition("if ")[0] + "live = " + live.partition("live = ")[2]
    # As the first consumer's name is gone, only the end of the program closes it.
    first = "first = live"
    done = run([send, careless, first, careless, "first.close()", END], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "this process has another member of it already" in done.stderr
