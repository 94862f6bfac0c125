"""ProcessSupervisor: keeps the processes of `ordermq run` running, restarts and stops them.

Everything runs on one asyncio loop, so nothing here is locked. The port of metrics has threads;
they ask through `ask_all`. Nothing here may block: the output is written by threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ordermq.cli.output import ExitCode
from ordermq.cli.run.metrics_port import MetricsPort
from ordermq.cli.run.run_output import OutputStream, RunOutput

_PROCESS = "ordermq.cli.run.consumer_process"
_LINE_LIMIT = 1 << 24  # bytes of an answer: the metrics of thousands of queues
_TEXT_LIMIT = 1 << 16  # bytes of output without an end of line
_ASK_S = 8.0  # for an answer; below a scrape's time-out of ten
_LOOK_S = 0.1  # between two looks at a new process
_GRACE_S = 10.0  # beyond the stop time-out or a second signal, until a process is killed
_DRAIN_S = 1.0  # for the last lines of a process
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_STEADY_S = 60.0  # a process that ran so long had started well


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The options of `ordermq run`.

    Args:
        metrics: address and port of the metrics; None for none.
        watched: a folder whose changes restart the processes; None for none.
    """

    target: str
    processes: int
    stop_timeout_s: float
    roll_timeout_s: float
    metrics: tuple[str, int] | None = None
    watched: Path | None = None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one process: as it answered, or not ready."""

    is_ready: bool = False
    queues: int = 0


def restart_pause_s(crashes: int) -> float:
    """Return the pause before a restart after `crashes` in a row, >= 1: 1 s, 2 s, 4 s .. 30 s."""
    return min(_FIRST_PAUSE_S * 2.0 ** min(crashes - 1, 10), _LONGEST_PAUSE_S)


class ConsumerProcess:
    """One process, from its start to its end; its output goes to ours, each line with its number.

    Args:
        number: from 1 on; a process that replaces another has the same.
        output: where its lines go.
    """

    def __init__(self, number: int, plan: RunPlan, output: RunOutput) -> None:
        self.number = number
        self._plan = plan
        self._output = output
        self._process: asyncio.subprocess.Process | None = None
        self.was_told_to_end = asyncio.Event()
        self._asking = asyncio.Lock()
        self._question = 0
        self._channel: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._forwards: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start it; it is ready later."""
        ours, its = socket.socketpair()
        with its:
            command = [sys.executable, "-u", "-m", _PROCESS, self._plan.target]
            command += ["--channel", str(its.fileno())]
            command += ["--stop-timeout", str(self._plan.stop_timeout_s)]
            if self._plan.metrics is not None:
                command.append("--metrics")
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(its.fileno(),),
                    # Ctrl-C reaches every process of a terminal's session: each would take our
                    # SIGTERM for the second signal, which does not wait for listeners.
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._channel = await asyncio.open_connection(sock=ours, limit=_LINE_LIMIT)
        assert process.stdout is not None
        assert process.stderr is not None
        pairs = (process.stdout, self._output.stdout), (process.stderr, self._output.stderr)
        self._forwards = [
            asyncio.create_task(self._forward(source, target)) for source, target in pairs
        ]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def wait(self) -> int:
        """Return its exit code; negative for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        # Its own children may hold the pipes open for ever.
        await asyncio.wait(self._forwards, timeout=_DRAIN_S)
        for forward in self._forwards:
            forward.cancel()
        if self._channel is not None:
            self._channel[1].close()
        return code

    def end(self) -> None:
        """Tell it to end; told again, it does not wait for listeners."""
        self.was_told_to_end.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(number)

    async def state(self) -> ProcessState:
        """Return its state; not ready if it does not answer."""
        answer = await self.ask("state")
        return ProcessState() if answer is None else ProcessState(**answer)

    async def ask(self, question: str) -> Any:
        """Return its answer; None if there is none in time."""
        if self._channel is None:
            return None
        reader, writer = self._channel
        try:
            async with asyncio.timeout(_ASK_S), self._asking:
                self._question += 1
                writer.write(json.dumps([self._question, question]).encode() + b"\n")
                await writer.drain()
                while True:
                    number, answer = json.loads(await reader.readline())
                    if number == self._question:  # else a late one, to an earlier question
                        return answer
        except (TimeoutError, OSError, ValueError):
            return None  # it is too slow, or has ended

    async def _forward(self, source: asyncio.StreamReader, target: OutputStream) -> None:
        # It reads on whatever becomes of the lines: a process whose pipe is full hangs.
        prefix, rest = f"[{self.number}] ".encode(), b""
        while read := await source.read(_TEXT_LIMIT):
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > _TEXT_LIMIT:
                lines, rest = [*lines, rest], b""
            if lines:
                target.write(b"".join(prefix + line + b"\n" for line in lines))
        if rest:
            target.write(prefix + rest + b"\n")


class ProcessSupervisor:
    """Runs a plan until it is told to stop, or every process has finished."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._processes: list[ConsumerProcess | None] = [None] * plan.processes
        self._stopping = asyncio.Event()
        self._is_hurried = asyncio.Event()  # a second signal has come
        self._roll_asked = asyncio.Event()
        self._code = ExitCode.OK
        self._restarts = 0

    async def run(self) -> int:
        """Run; return the exit code."""
        loop = asyncio.get_running_loop()
        self._output = RunOutput(loop, self._on_broken_pipe)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._roll_asked.set)
        port = None
        if self._plan.metrics is not None:
            try:
                port = MetricsPort(*self._plan.metrics, loop, self.ask_all, self._counts)
            except OSError as error:
                self.tell(f"--metrics-port: {error}")
                return ExitCode.USAGE
        where = "" if port is None else f"; metrics at {port.url}"
        count = self._plan.processes
        processes = "1 process" if count == 1 else f"{count} processes"
        self.tell(f"{processes} of {self._plan.target}, supervised by {os.getpid()}{where}")
        beside = [asyncio.create_task(self._roll_when_asked())]
        if self._plan.watched is not None:
            beside.append(asyncio.create_task(self._roll_after_changes(self._plan.watched)))
        try:
            await asyncio.gather(*(self._keep(place) for place in range(count)))
        finally:
            for task in beside:
                task.cancel()
            if port is not None:
                port.close()
        return self._code

    def drain(self) -> None:
        """Wait for the last lines, as long as somebody reads them; the loop has ended."""
        self._output.drain()

    def tell(self, text: str) -> None:
        """Write a line of the supervisor's own."""
        self._output.tell(text)

    def stop(self) -> None:
        """Stop every process; a second call does not wait for listeners."""
        is_second = self._stopping.is_set()
        self._stopping.set()
        if is_second:
            self._is_hurried.set()
        for process in self._processes:
            # One that a rolling restart has told would take this for its second signal.
            if process is not None and (is_second or not process.was_told_to_end.is_set()):
                process.end()

    def _on_broken_pipe(self) -> None:
        if not self._stopping.is_set():
            self.stop()

    async def ask_all(self, question: str) -> dict[int, Any]:
        """Return each process's answer by its number; None where there is none."""
        running = [process for process in self._processes if process is not None]
        answers = await asyncio.gather(*(process.ask(question) for process in running))
        by_number = {p.number: answer for p, answer in zip(running, answers, strict=True)}
        return {number: by_number.get(number) for number in range(1, self._plan.processes + 1)}

    def _counts(self) -> dict[str, int]:
        return {
            "processes": self._plan.processes,
            "restarts": self._restarts,
            "dropped_lines": self._output.dropped_lines,
        }

    def _on_stop_signal(self) -> None:
        self.tell("stopping" if not self._stopping.is_set() else "stopping without waiting")
        self.stop()

    # A place among the processes.

    async def _keep(self, place: int) -> None:
        """Keep a process running here, until it finishes or everything stops."""
        crashes, is_first = 0, True
        while not self._stopping.is_set():
            process = ConsumerProcess(place + 1, self._plan, self._output)
            begun = time.monotonic()
            try:
                await process.start()
            except OSError as error:  # no memory, or no more processes: perhaps later
                crashes += 1
                self.tell(f"process {process.number} cannot be started: {error}")
                await self._pause(crashes)
                continue
            self._processes[place] = process
            if self._stopping.is_set():  # meanwhile
                process.end()
            code = await self._ended(process)
            self._processes[place] = None
            if process.was_told_to_end.is_set() and not self._is_handed_over(code):
                self.tell(
                    f"process {process.number} ({_name_of(code)}) left without handing over its "
                    "queues: other members wait for its locks, and what it had not committed "
                    "comes again"
                )
                # A rolling restart goes on: the end of everything is judged by the last processes.
                if self._stopping.is_set():
                    self._end_with(ExitCode.FAILED)
            if self._stopping.is_set():
                return
            if process.was_told_to_end.is_set():
                crashes, is_first = 0, False
                continue
            if code == ExitCode.OK:
                self.tell(f"process {process.number} has finished")
                return
            if code == ExitCode.USAGE and is_first:
                self.tell(f"process {process.number} cannot start, see above; stopping")
                self._end_with(ExitCode.USAGE)
                self.stop()
                return
            is_first = False
            crashes = 1 if time.monotonic() - begun > _STEADY_S else crashes + 1
            self._restarts += 1
            self.tell(
                f"process {process.number} (pid {process.pid}) ended with {_name_of(code)}; "
                f"restarting it in {restart_pause_s(crashes):g} s"
            )
            await self._pause(crashes)

    def _is_handed_over(self, code: int) -> bool:
        """Return True if a process that was told to end did so in order, by its exit code."""
        # A signal that came before it could handle it has stopped it as well. The second one ends
        # it wherever it is: nobody knows what it had still to do.
        return code == ExitCode.OK or (code == -signal.SIGTERM and not self._is_hurried.is_set())

    async def _pause(self, crashes: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), restart_pause_s(crashes))

    def _end_with(self, code: ExitCode) -> None:
        if self._code is ExitCode.OK:  # the first failure tells why
            self._code = code

    async def _ended(self, process: ConsumerProcess) -> int:
        """Wait for the end of a process; kill one that does not end when told to."""
        ended = asyncio.create_task(process.wait())
        told = asyncio.create_task(process.was_told_to_end.wait())
        await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not ended.done() and not await self._is_in_time(ended):
            self.tell(f"process {process.number} has not ended in time; killing it")
            process.signal(signal.SIGKILL)
        return await ended

    async def _is_in_time(self, ended: asyncio.Task[int]) -> bool:
        """Wait for the end of a process that was told; False if it takes too long."""
        hurried = asyncio.create_task(self._is_hurried.wait())
        at_most_s = self._plan.stop_timeout_s + _GRACE_S
        await asyncio.wait((ended, hurried), timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
        if hurried.done():
            await asyncio.wait((ended,), timeout=_GRACE_S)
        hurried.cancel()
        return ended.done()

    # Rolling restarts.

    async def _roll_when_asked(self) -> None:
        while await self._roll_asked.wait():
            self._roll_asked.clear()
            await self._roll()

    async def _roll(self) -> None:
        """Restart one process after the other; end at the first that does not come up."""
        self.tell("rolling restart")
        for place, old in enumerate(self._processes):
            if old is None:
                continue  # it has finished, or is about to be started anyway
            before = await old.state()
            old.end()
            if not await self._is_replaced(place, old, before):
                if self._stopping.is_set():
                    return
                self.tell(
                    f"rolling restart ended at process {old.number}: the new one holds no queues; "
                    "the others run on as they are"
                )
                return
        self.tell("rolling restart done")

    async def _is_replaced(self, place: int, old: ConsumerProcess, before: ProcessState) -> bool:
        """Wait until a new process is ready and holds queues, if the old one held any."""
        new: ConsumerProcess | None = None
        until = None
        while not self._stopping.is_set():
            present = self._processes[place]
            if new is None and present is not old:
                new = present  # the old one may take its time; the new one's begins here
                until = time.monotonic() + self._plan.roll_timeout_s
            elif new is not None:
                if present is not new:
                    return False  # it has ended
                state = await new.state()
                if state.is_ready and (state.queues or not before.queues):
                    return True
                assert until is not None
                if time.monotonic() > until:
                    return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_S)
        return False

    async def _roll_after_changes(self, folder: Path) -> None:
        from watchfiles import PythonFilter, awatch

        async for changes in awatch(folder, watch_filter=PythonFilter()):
            self.tell(f"{_shortest(changes)} has changed")
            self._roll_asked.set()


def _shortest(changes: Iterable[tuple[object, str]]) -> str:
    return min((path for _, path in changes), key=len)


def _name_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
