"""The entry point of `ordermq`."""

from __future__ import annotations

import importlib
import sys

try:
    import click
    import rich as rich  # only checked here: the commands use it
except ImportError:
    # A traceback would not tell the user what to install.
    sys.exit("ordermq: the command line needs click and rich: pip install 'ordermq[cli]'")

_COMMANDS = {
    "broker": ("ordermq.cli.broker", "broker"),
    "produce": ("ordermq.cli.produce", "produce"),
    "consume": ("ordermq.cli.consume", "consume"),
    "topics": ("ordermq.cli.topics", "topics"),
    "groups": ("ordermq.cli.groups", "groups"),
    "lag": ("ordermq.cli.lag", "lag"),
    "locks": ("ordermq.cli.locks", "locks"),
    "top": ("ordermq.cli.top", "top"),
    "reset": ("ordermq.cli.reset", "reset"),
    "peek": ("ordermq.cli.peek", "peek"),
    "dlq": ("ordermq.cli.dead_letters", "dlq"),
    "audit": ("ordermq.cli.audit", "audit_command"),
    "demo": ("ordermq.cli.demo", "demo"),
}


class _Commands(click.Group):
    """The subcommands, imported on demand: `audit` needs no broker and no matplotlib."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


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
