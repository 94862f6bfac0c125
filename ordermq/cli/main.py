"""The entry point of `ordermq`."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ordermq.cli.signals import ended_by_signals, importing
from ordermq.cli.streams import prepare_streams

# Name -> module, name there, summary: what the help shows without importing all of them, and also
# where click and rich are missing.
_COMMANDS = {
    "broker": ("broker", "broker", "Run a name server and broker on one port."),
    "produce": ("produce", "produce", "Send each line of FILE to TOPIC as a message."),
    "consume": (
        "consume",
        "consume",
        "Print and commit the messages of TOPIC as a member of GROUP.",
    ),
    "run": ("run", "run", "Run a consumer in several processes that share its queues."),
    "topics": ("topics", "topics", "List, describe, create and delete topics."),
    "groups": ("groups", "groups", "List, describe, create and delete consumer groups."),
    "lag": ("lag", "lag", "Show how many messages GROUP is behind on each queue."),
    "exporter": ("exporter", "exporter", "Serve the lag and the members of GROUPS to Prometheus."),
    "locks": ("locks", "locks", "Show which member of GROUP holds each queue."),
    "top": ("top", "top", "Watch the rates, lag and owner of each queue of GROUP."),
    "reset": ("reset", "reset", "Move GROUP to other offsets of TOPIC, forward or back."),
    "peek": ("peek", "peek", "Print messages of TOPIC, the oldest first; nothing is committed."),
    "dlq": ("dead_letters", "dlq", "List, show and send again the messages that groups gave up."),
    "messages": ("messages", "messages", "Find messages, and where they are in each group."),
    "parked": ("parked", "parked", "List, show and go on with keys that groups hold back."),
    "config": ("config", "config", "Check settings, and connect step by step."),
    "doctor": ("doctor", "doctor", "Look for what is wrong, and say what to do about it."),
    "audit": ("audit", "audit_command", "Check recorded histories for order, loss and duplicates."),
    "demo": (
        "demo.command",
        "demo",
        "Kill consumers and the broker during a run, and check the order.",
    ),
}  # fmt: skip
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
_INSTALL = "the command line needs click and rich: pip install 'ordermq[cli]'"


def _plain_help(arguments: Sequence[str]) -> str:
    """Return the help as far as it is known without click: the commands, or one summary."""
    asked = next((each for each in arguments if each in _COMMANDS), None)
    if asked is not None:
        lines = [f"Usage: ordermq {asked} ...", "", f"  {_COMMANDS[asked][2]}"]
    else:
        lines = ["Usage: ordermq COMMAND ...", "", "Commands:"]
        lines += [f"  {name:9}{summary}" for name, (_, _, summary) in _COMMANDS.items()]
    lines += ["", "All options are in docs/cli.md.", f"{_INSTALL[0].upper()}{_INSTALL[1:]}"]
    return "\n".join(lines)


try:
    with importing():
        import click
        import rich as rich  # only checked here: the commands use it
except ImportError:
    if {"-h", "--help"} & set(sys.argv):
        sys.stdout.write(f"{_plain_help(sys.argv[1:])}\n")
        sys.exit(0)
    # A traceback would not tell the user what to install.
    sys.exit(f"ordermq: {_INSTALL}")


class _Commands(click.Group):
    """The subcommands, imported on demand: `audit` needs no broker and no matplotlib."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click suggests among commands that are imported, and not at all before 8.4.
        if args[0] not in _COMMANDS and args[0][:1] != "-" and not ctx.resilient_parsing:
            from ordermq.cli.mqadmin import command_of
            from ordermq.config.checks import hint

            meant = command_of(args[0]) or hint(args[0], _COMMANDS)
            raise click.UsageError(f"No such command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        with importing():
            command = getattr(importlib.import_module(f"ordermq.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **settings: Any) -> Any:
        prepare_streams()
        try:
            return super().main(*args, **settings)
        except OSError as error:
            # Without a name: of stdout. Where its reader has exited, click ends the command.
            if error.filename is not None or error.errno not in _UNWRITABLE:
                raise
            from ordermq.cli.output import fail_to_write

            fail_to_write(error)

    def invoke(self, ctx: click.Context) -> Any:
        with ended_by_signals() as received:
            try:
                return super().invoke(ctx)
            except click.NoSuchOption as error:
                from ordermq.cli.mqadmin import OPTIONS

                meant = OPTIONS.get(error.option_name)
                if meant is None:
                    raise
                text = f"No such option {error.option_name!r}: {meant}"
                raise click.UsageError(text, error.ctx) from None
            except click.Abort:
                # click's word for Ctrl-C at a question, and for the end of the input.
                if received:
                    raise KeyboardInterrupt from None
                raise


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="ordermq")
def main() -> None:
    """Produce and consume RocketMQ messages in strict order; run a broker; inspect groups.

    \b
    Example, each line in a terminal of its own:
      ordermq broker --data ./data --port 9876
      ordermq consume billing orders --from first
      echo "o-17,paid" | ordermq produce orders --csv --no-header --key-column 0
      ordermq top billing
    """


if __name__ == "__main__":
    main(prog_name="ordermq")
