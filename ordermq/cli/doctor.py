"""`ordermq doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from ordermq.admin.admin import Admin
from ordermq.admin.doctor import Finding, Verdict
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    counted,
    fail,
    json_option,
    out,
    print_json,
    print_line,
)

_MARKS = {
    Verdict.OK: ("ok      ", "green"),
    Verdict.WARNING: ("warning ", "yellow"),
    Verdict.FAILED: ("FAILED  ", "bold red"),
}


@click.command(epilog=EXIT_CODES)
@click.option("--topic", help="Also look for this topic.")
@click.option(
    "--group", help="Also look at this consumer group: settings, members, lag, dead letters."
)
@click.option(
    "--no-message",
    is_flag=True,
    help="Send no message: change nothing at the brokers.",
)
@client_options
@json_option
def doctor(
    topic: str | None, group: str | None, no_message: bool, servers: Servers, as_json: bool
) -> None:
    """Look for what is wrong, and say what to do about it.

    Looked at are the name servers, each broker with its version, settings, disk and load, the topic
    and the group, if given. Then a message is sent to each broker and read, through the topic
    ordermq_doctor, which is created for it and deleted again; the broker's clock is compared with
    this machine's. Warnings leave the exit code 0.

    \b
    Example:
      ordermq doctor
      ordermq doctor --topic orders --group billing
      ordermq doctor --no-message --json
    """
    with exit_on_error(), Admin(**servers.settings()) as admin:
        findings = admin.doctor(topic=topic, group=group, sends=not no_message)
    failed = [each for each in findings if each.verdict is Verdict.FAILED]
    if as_json:
        print_json({"ok": not failed, "findings": list(map(asdict, findings))})
    else:
        for each in findings:
            _show(each)
        warnings = sum(each.verdict is Verdict.WARNING for each in findings)
        out.print(
            f"{len(findings)} looked at, {counted(warnings, 'warning')}, {len(failed)} failed"
        )
    if failed:
        # The first one: those behind it are its consequences.
        code = ExitCode.UNREACHABLE if failed[0].is_unreachable else ExitCode.FAILED
        fail(f"{failed[0].name}: {failed[0].detail}", code)


def _show(finding: Finding) -> None:
    print_line(Text(*_MARKS[finding.verdict]) + Text(f"{finding.name}: {finding.detail}"))
    if finding.remedy:
        print_line(Text(f"        -> {finding.remedy}"))
