"""Events of listener calls in a history: the same, whoever adds their lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq.consumer.listener import ConsumeContext
from ordermq.events import History
from ordermq.model.message import MessageBatch, MessageView
from ordermq.model.status import ConsumeResult
from tests.unit.core.stored_records import record

from .batches import QUEUE, batch
from .consume_loops import LOOPS, consuming_by
from .test_orderly import Consumption

pytestmark = pytest.mark.usefixtures("loop")
HEAD = {"group": "G", "topic": "T", "broker": "broker-a", "queue": 0, "epoch": 7}


def recorded(
    path: Path, loop: str, results: Sequence[Any], *, natively: bool, **config: Any
) -> list[dict[str, Any]]:
    """Consume, with these results of the listener's first calls; return the events of calls."""
    path.unlink(missing_ok=True)
    left = iter(results)

    def listen(messages: Sequence[MessageView], context: ConsumeContext) -> Any:
        result = next(left, None)
        if result == "hold":
            context.auto_commit = False
            return ConsumeResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result

    with consuming_by(loop), History(path, "me", in_background=natively) as history:
        consumption = Consumption(recorder=history, consume_message_batch_max_size=3, **config)
        consumption.run(listen)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    return [
        {name: value for name, value in event.items() if name not in ("p", "seq", "t")}
        for event in events[1:-1]
    ]


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_each_call_has_a_start_and_an_end(tmp_path: Path, loop: str, natively: bool) -> None:
    events = recorded(tmp_path / "h", loop, [], natively=natively)
    assert len(events) == 2 * 67
    offsets = [[3 * call, 3 * call + 1, 3 * call + 2][: 200 - 3 * call] for call in range(67)]
    for offs, started, ended in zip(offsets, events[::2], events[1::2], strict=True):
        both = {**HEAD, "offs": offs, "keys": [None] * len(offs)}
        assert started == {"type": "START", **both, "attempt": 0}
        assert ended == {"type": "END", **both, "done": len(offs), "detail": "DONE"}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "results",
    [
        ["hold", None],
        [None, 1],
        [None, ValueError("a failure")],
        [ConsumeResult.COMMIT, ConsumeResult.SUCCESS, ConsumeResult.SUSPEND],
        [3, "nonsense"],
    ],
)
def test_native_lines_tell_what_others_tell(
    tmp_path: Path, loop: str, results: Sequence[Any]
) -> None:
    for config in ({}, {"auto_commit": False}):
        wanted = recorded(tmp_path / "h", "reference", results, natively=False, **config)
        assert wanted
        assert recorded(tmp_path / "h", loop, results, natively=True, **config) == wanted


@pytest.mark.parametrize("loop", LOOPS)
def test_a_message_without_readable_properties_has_no_line_and_stops_nobody(
    tmp_path: Path, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = MessageBatch(QUEUE, record(offset=200, properties=b"A\x01\xff\x02"))
    path = tmp_path / "h"
    with consuming_by(loop), History(path, "me", in_background=True) as history:
        consumption = Consumption(recorder=history)
        consumption.assigned.accept(0, unreadable, 201)
        consumption.assigned.accept(0, batch([201]), 202)
        consumption.run(lambda messages, context: None)
    assert consumption.assigned.done_offset == 202
    lines = path.read_bytes().splitlines()
    events = [json.loads(line) for line in lines][1:-1]
    offsets = [offset for offset in range(202) if offset != 200]
    assert [event["offs"] for event in events if event["type"] == "START"] == [[o] for o in offsets]
    assert [event["offs"] for event in events if event["type"] == "END"] == [[o] for o in offsets]
    assert caplog.text.count("history: events are not recorded") == 1
