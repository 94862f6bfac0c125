"""Runs of messages, cut and looked at, against plain lists of offsets."""

from __future__ import annotations

from itertools import islice
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])
# For each index: how many messages, where the segment begins, how many it has.
SHAPES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7), st.integers(0, 3)), max_size=5)


def index_of(core: ModuleType, first: int, count: int) -> Any:
    written = core.RecordWriter("T", 0, HOST, HOST)
    records = []
    for offset in range(first, first + count):
        rows = written.write(b"x", b"", flag=0, sys_flag=0, born_ms=1, stored_ms=2)
        records += [record for _, _, record in rows.rows(offset, 0)]
    return core.MessageIndex(b"".join(records))


def run_of(core: ModuleType, shapes: list[tuple[int, int, int]]) -> tuple[Any, list[int]]:
    """A run, and the offsets it must have."""
    segments, offsets = [], []
    for number, (before, count, behind) in enumerate(shapes):
        first = 100 * number
        segments.append((index_of(core, first, before + count + behind), before, count))
        offsets += range(first + before, first + before + count)
    return core.MessageRun(segments), offsets


def offsets_of(core: ModuleType, run: Any) -> list[int]:
    return [view.queue_offset for view in run.views(core.MessageView)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(shapes=SHAPES, size=st.integers(1, 20))
def test_a_run_and_its_parts_have_the_messages_of_its_segments(
    core: ModuleType, shapes: list[tuple[int, int, int]], size: int
) -> None:
    run, offsets = run_of(core, shapes)
    assert len(run) == len(offsets)
    assert run.offsets() == offsets == offsets_of(core, run)
    assert [run.view(core.MessageView, i).queue_offset for i in range(len(run))] == offsets
    parts = list(run.cut(core.MessageRun, size))
    assert [part.offsets() for part in parts] == [
        offsets[start : start + size] for start in range(0, len(offsets), size)
    ]
    for part in parts:
        assert offsets_of(core, part) == part.offsets()
        assert (part.first_offset, part.last_offset) == (part.offsets()[0], part.offsets()[-1])
        again = core.MessageRun(part.segments)
        assert again.offsets() == part.offsets()
        assert [piece.offsets() for piece in part.cut(core.MessageRun, 1)] == [
            [offset] for offset in part.offsets()
        ]


def test_an_empty_run_has_nothing(core: ModuleType) -> None:
    run = core.MessageRun([])
    assert len(run) == 0
    assert (list(run.segments), run.offsets(), offsets_of(core, run)) == ([], [], [])
    assert list(run.cut(core.MessageRun, 3)) == []
    for read in ("first_offset", "last_offset"):
        with pytest.raises(IndexError):
            getattr(run, read)


def test_positions_and_segments_that_are_not_there_are_refused(core: ModuleType) -> None:
    run, _ = run_of(core, [(1, 2, 1), (0, 1, 0)])
    for position in (-1, 3):
        with pytest.raises(IndexError, match="of 3"):
            run.view(core.MessageView, position)
    index = index_of(core, 0, 3)
    for first, count in ((-1, 1), (0, 0), (0, 4), (3, 1)):
        with pytest.raises(IndexError):
            core.MessageRun([(index, first, count)])
    with pytest.raises(TypeError, match="segment of a list"):
        core.MessageRun([([1, 2], 0, 1)])


def test_parts_are_of_the_class_asked_for_without_its_init(core: ModuleType) -> None:
    class Mine(core.MessageRun):  # type: ignore[name-defined,misc]
        __slots__ = ()

        def __init__(self) -> None:
            raise AssertionError("it is not to run")

    run, offsets = run_of(core, [(0, 3, 0), (0, 2, 0)])
    parts = list(run.cut(Mine, 2))
    assert [type(part) for part in parts] == [Mine, Mine, Mine]
    assert [offset for part in parts for offset in part.offsets()] == offsets
    for kind in (dict, 7):
        with pytest.raises(TypeError, match="class of MessageRuns"):
            run.cut(kind, 2)
    for size in (0, -1):
        with pytest.raises(ValueError, match="1 or more"):
            run.cut(core.MessageRun, size)
    with pytest.raises(TypeError):
        run.view(dict, 0)


def test_parts_outlive_the_run_and_a_cut_that_was_left(core: ModuleType) -> None:
    run, offsets = run_of(core, [(0, 3, 0), (0, 2, 0)])
    cut = run.cut(core.MessageRun, 2)
    del run
    first, second = islice(cut, 2)
    del cut
    assert first.offsets() + second.offsets() == offsets[:4]
