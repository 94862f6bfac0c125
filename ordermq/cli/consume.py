"""`ordermq consume`: print the messages of a topic, in order within each queue."""

from __future__ import annotations

import base64
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from ordermq import json_text
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.output import EXIT_CODES, fail, fail_to_write, note, progress_bar
from ordermq.config import ConsumeFromWhere
from ordermq.consumer.listener import ConsumeContext
from ordermq.consumer.push_consumer import PushConsumer
from ordermq.errors import DecodeError
from ordermq.model.message import MessageView

_FROM = {"first": ConsumeFromWhere.FIRST_OFFSET, "last": ConsumeFromWhere.LAST_OFFSET}


@click.command(epilog=EXIT_CODES)
@click.argument("group")
@click.argument("topic")
@click.argument("tags", default="*")
@client_options
@click.option(
    "--from",
    "start",
    type=click.Choice(list(_FROM)),
    default="last",
    show_default=True,
    help="Where to start if the group has no committed offset: first or last message.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), help="Stop after this many seconds without a message."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Maximum number of messages printed and committed together.",
)
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    help="Record events to this file, for `ordermq audit`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def consume(
    group: str,
    topic: str,
    tags: str,
    servers: Servers,
    start: str,
    count: int | None,
    timeout: float | None,
    batch: int,
    history: Path | None,
    as_json: bool,
) -> None:
    """Print and commit the messages of TOPIC as a member of GROUP.

    It runs until SIGINT, SIGTERM, --count or --timeout. TAGS filters messages, for example 'paid ||
    refunded'. Each line has queue, offset, key and body, separated by tabs. Exactly the printed
    messages are committed, also when --count ends in the middle of a batch.

    \b
    Example:
      ordermq consume billing orders 'paid || refunded' --from first
      ordermq consume billing orders --count 100 --timeout 5 --json
    """
    with exit_on_error():
        consumer = PushConsumer(
            group,
            history=history,
            consume_from_where=_FROM[start],
            consume_message_batch_max_size=batch,
            consume_thread_count=1,  # lines of two queues must not be mixed
            **servers.settings(),
        )
        consumer.subscribe(topic, tags)
    # On a terminal the printed lines are progress enough.
    show = count is not None and not sys.stdout.isatty()
    with _bar(count or 0) if show else contextlib.nullcontext(_nothing) as on_printed:
        printer = _Printer(consumer, count, as_json, on_printed)
        handed_over = _run(consumer, printer, timeout)
    if not as_json:
        note(f"{printer.printed:,} messages printed and committed")
    if printer.error is not None:
        fail_to_write(printer.error)
    if count is not None and printer.printed < count:
        fail(f"stopped after {printer.printed:,} of {count:,} messages")
    if not handed_over:
        fail("a queue could not be handed over in time; its last messages may be redelivered")


def _run(consumer: PushConsumer, printer: _Printer, timeout: float | None) -> bool:
    consumer.orderly(printer)
    # A thread, because `run` blocks this one and the listener is not called while nothing arrives.
    if timeout is not None:
        threading.Thread(target=printer.stop_when_idle, args=(timeout,), daemon=True).start()
    with exit_on_error():
        return consumer.run()


@contextlib.contextmanager
def _bar(count: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar to a user who pipes the messages elsewhere."""
    with progress_bar() as progress:
        bar = progress.add_task("messages", total=count, note="")
        yield lambda printed: progress.update(bar, completed=printed)


def _nothing(printed: int) -> None:
    return None


class _Printer:
    """The listener; one worker thread calls it, so lines are never mixed."""

    def __init__(
        self,
        consumer: PushConsumer,
        count: int | None,
        as_json: bool,
        on_printed: Callable[[int], None],
    ) -> None:
        self._consumer = consumer
        self._on_printed = on_printed
        self._left = count
        self._format = _json_line if as_json else _text_line
        self._moved = threading.Event()
        self.printed = 0
        self.error: OSError | None = None  # of the output

    def __call__(self, messages: Sequence[MessageView], context: ConsumeContext) -> int:
        """Print messages; return how many were printed: only those are committed."""
        done = 0
        for message in messages:
            # Checked per message: printing may be slow, and a revoked queue has a new owner.
            if self._left == 0 or context.is_revoked():
                break
            try:
                click.echo(self._format(message, context))
            except (
                OSError
            ) as error:  # a full disk; or the reader of a pipe, as `| head`, has exited
                self._left = 0
                self.error = None if isinstance(error, BrokenPipeError) else error
                self._consumer.stop()
                break
            done += 1
            self.printed += 1
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self._consumer.stop()
        self._on_printed(self.printed)
        self._moved.set()
        return done

    def stop_when_idle(self, seconds: float) -> None:
        """Stop the consumer once nothing was printed for this long."""
        while self._moved.wait(seconds):
            self._moved.clear()
        self._consumer.stop()


def _text_line(message: MessageView, context: ConsumeContext) -> str:
    # Never fails: no body, binary or damaged, must stop the group at its offset.
    raw, problem = _raw_body(message)
    if problem is not None:
        where = f"{context.message_queue} offset {message.queue_offset}"
        note(f"{where}: {problem}; its bytes are printed as they are stored")
    body = raw.decode(errors="backslashreplace")
    key = message.sharding_key or "-"
    return f"{context.message_queue}\t{message.queue_offset}\t{key}\t{body}"


def _json_line(message: MessageView, context: ConsumeContext) -> str:
    return json_text.dumps(message_document(message)).decode()


def _raw_body(message: MessageView) -> tuple[bytes, str | None]:
    """Return a body; one that cannot be decompressed as it is stored, and the reason."""
    try:
        return bytes(message.body), None
    except DecodeError as error:
        return bytes(message.stored_body), str(error)


def _text_of(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def message_document(message: MessageView) -> dict[str, object]:
    """Return a message for JSON; its body as text, or in base64 if it is not text.

    A body that cannot be decompressed is there as it is stored, with the reason.
    """
    raw, problem = _raw_body(message)
    text = _text_of(raw) if problem is None else None
    body = {} if problem is None else {"body_error": problem}
    # JSON has no bytes: a body that is not text gets a field of its own.
    body |= {"body_base64": base64.b64encode(raw).decode()} if text is None else {"body": text}
    queue = message.message_queue
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": message.queue_offset,
        "key": message.sharding_key,
        "tags": message.tags,
        "message_id": message.message_id,
        **body,
    }
