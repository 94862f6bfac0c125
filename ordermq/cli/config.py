"""`ordermq config check`: are the settings right, and does everything answer?"""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import Any

import click
from rich.text import Text

from ordermq.admin.admin import Admin
from ordermq.admin.check import CheckKind, CheckStep
from ordermq.cli.client_options import Servers, client_options
from ordermq.cli.output import EXIT_CODES, ExitCode, fail, json_option, print_json, print_line
from ordermq.config import (
    ConsumerConfig,
    LitePullConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
)
from ordermq.config.client import ENVIRONMENT_PREFIX
from ordermq.errors import ConfigError

_CLIENTS = (ProducerConfig, ConsumerConfig, LitePullConsumerConfig, PullConsumerConfig)
_EXIT_CODES = {
    CheckKind.SETTINGS: ExitCode.USAGE,
    CheckKind.CONNECTION: ExitCode.UNREACHABLE,
    CheckKind.ANSWER: ExitCode.FAILED,
}


@click.group(epilog=EXIT_CODES)
def config() -> None:
    """Check settings, and connect step by step.

    \b
    Example:
      ordermq config check
    """


@config.command("check", epilog=EXIT_CODES)
@click.option("--url", help="Check this URL of settings: rocketmq://host:9876?group=shop.")
@click.option("--topic", help="Also look for this topic.")
@click.option("--group", help="Also look for this consumer group.")
@client_options
@json_option
def check(
    url: str | None, topic: str | None, group: str | None, servers: Servers, as_json: bool
) -> None:
    """Say of each step to the brokers whether it works.

    Checked are the variables ORDERMQ_... of the environment, the name servers, the brokers they
    list, and the topic and group, if given. With --url, that is checked, and connected to with
    what it says.

    \b
    Example:
      ordermq config check --topic orders --group billing
      ORDERMQ_RETRY_TIMES=5 ordermq config check
      ordermq config check --url "rocketmq://mq.internal:9876?tls=true"
    """
    steps = [_environment()]
    settings = servers.settings()
    if url is not None:
        step, settings = _of_url(url)
        steps.append(step)
    if steps[-1].is_ok:
        steps += _connected(settings, topic, group)
    if as_json:
        print_json({"ok": all(step.is_ok for step in steps), "steps": list(map(asdict, steps))})
    else:
        for step in steps:
            mark = Text("ok     ", "green") if step.is_ok else Text("FAILED ", "bold red")
            print_line(mark + Text(f"{step.name}: {step.detail}"))
    if failed := [step for step in steps if not step.is_ok]:
        # The first one: those behind it are its consequences.
        fail(f"{failed[0].name}: {failed[0].detail}", _EXIT_CODES[failed[0].kind])


def _environment() -> CheckStep:
    names = sorted(name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX))
    try:
        for kind in _CLIENTS:
            kind.from_env()
    except ConfigError as error:
        return CheckStep("environment", CheckKind.SETTINGS, False, str(error))
    return CheckStep("environment", CheckKind.SETTINGS, True, ", ".join(names) or "nothing set")


def _of_url(url: str) -> tuple[CheckStep, dict[str, Any]]:
    try:
        found = ProducerConfig.from_url(url)
    except ConfigError as error:
        return CheckStep("URL", CheckKind.SETTINGS, False, str(error)), {}
    settings = {each.name: getattr(found.remoting, each.name) for each in fields(found.remoting)}
    settings["name_servers"] = found.name_servers
    return CheckStep("URL", CheckKind.SETTINGS, True, "it can be read"), settings


def _connected(settings: dict[str, Any], topic: str | None, group: str | None) -> list[CheckStep]:
    try:
        with Admin(**settings) as admin:
            return admin.check(topic=topic, group=group)
    except ConfigError as error:
        return [CheckStep("settings", CheckKind.SETTINGS, False, str(error))]
