"""Screens of the commands on terminals of 80 and 120 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ordermq import Admin, Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.cli.output import out
from ordermq.config import BrokerConfig
from tests.component.conftest import eventually

TOPIC = "orders-of-the-european-web-shop"
OTHER_TOPIC = "refunds-of-the-european-web-shop"
GROUP = "billing-of-the-european-web-shop"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCREENS = (
    "topics list",
    f"topics describe {TOPIC}",
    "groups list",
    f"groups describe {GROUP}",
    f"lag {GROUP} {TOPIC}",
    f"lag {GROUP}",
    f"lag {GROUP} {TOPIC} --watch --every 0.1 --count 2",
    f"locks {GROUP} {TOPIC}",
    f"locks {GROUP}",
    f"top {GROUP} {TOPIC} --every 0.1 --count 2",
    f"top {GROUP} --every 0.1 --count 2",
    f"peek {TOPIC}",
    f"dlq show {GROUP}-2",
    f"messages find {TOPIC} --at 1h",
    "dlq list",
)
WITH_QUEUES = tuple(each for each in SCREENS if each.split()[0] in ("lag", "locks", "top", "peek"))


@pytest.fixture(scope="module")
def name_servers() -> Iterator[str]:
    config = BrokerConfig(broker_name="broker-in-the-northern-hall", durability="os")
    consumer: PushConsumer | None = None
    with EmbeddedBroker(config=config) as broker:
        with Producer("shop", name_servers=broker.name_servers) as producer:
            for number in range(40):
                body = b'{"order": %d, "note": "' % number + b"long words " * 20 + b'"}'
                producer.send(Message(TOPIC, body), sharding_key=f"customer-{number}")
            producer.send(Message(f"%DLQ%{GROUP}-2", b"given up " * 30))
            producer.send(Message(OTHER_TOPIC, b"0"), sharding_key="customer-0")
        consumer = PushConsumer(GROUP, name_servers=broker.name_servers, commit_interval_ms=0)
        consumer.subscribe(TOPIC)
        consumer.subscribe(OTHER_TOPIC)
        consumer.orderly(lambda messages, context: None)
        with consumer, Admin(broker.name_servers) as admin:
            eventually(lambda: len(admin.group(GROUP).holdings) == 8, "it has the queues")
            yield broker.name_servers


@pytest.fixture(params=[80, 120])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The width of the terminal that rich finds."""
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", request.param)
    monkeypatch.setattr(out, "_height", 40)
    return int(request.param)


def run(line: str, name_servers: str) -> Result:
    return CliRunner().invoke(main, [*line.split(), "--name-servers", name_servers])


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in _CONTROL.sub("", result.stdout).splitlines()]


@pytest.mark.parametrize("line", SCREENS)
def test_a_screen_fits_its_terminal(name_servers: str, columns: int, line: str) -> None:
    lines = lines_of(run(line, name_servers))
    assert [each for each in lines if len(each) > columns] == []


@pytest.mark.parametrize("line", WITH_QUEUES)
def test_a_queue_keeps_its_number_however_narrow_the_terminal(
    name_servers: str, columns: int, line: str
) -> None:
    first_words = [each.split()[0] for each in lines_of(run(line, name_servers)) if each.strip()]
    queues = [word for word in first_words if "…" in word or "hall" in word]
    assert queues
    assert [word for word in queues if not re.search(r"hall/\d$", word)] == []


@pytest.mark.parametrize("line", [f"lag {GROUP}", f"locks {GROUP}", f"top {GROUP} --count 1"])
def test_topics_stand_whole_above_their_queues_where_both_have_no_room(
    name_servers: str, columns: int, line: str
) -> None:
    lines = [each.strip() for each in lines_of(run(line, name_servers))]
    topics = [each for each in lines if each in (TOPIC, OTHER_TOPIC)]
    numbers = re.findall(r"hall/(\d) ", "\n".join(lines))
    if line.startswith("top"):  # twice: the live view, and what stays when it ends
        topics, numbers = topics[-2:], numbers[-8:]
    if columns == 120 and not line.startswith("locks"):
        topics = [TOPIC, OTHER_TOPIC]  # there is room for whole queues, unless a member is long
    assert topics == [TOPIC, OTHER_TOPIC]
    assert numbers == list("0123" * 2)


def test_a_heading_is_wrapped_not_cut(name_servers: str, columns: int) -> None:
    heading, _, _ = "\n".join(lines_of(run(f"locks {GROUP}", name_servers))).partition("─")
    assert "…" not in heading
    assert {"held", "by", "member", "expires"} <= set(heading.split())


@pytest.mark.parametrize("line", ["groups list", f"groups describe {GROUP}"])
def test_each_topic_of_a_group_has_a_line_of_its_own(
    name_servers: str, columns: int, line: str
) -> None:
    # The table of queues of `describe` follows, and names both in any case.
    members, _, _ = "\n".join(lines_of(run(line, name_servers))).partition("behind")
    names = {word for word in members.split() if word.endswith("web-shop")}
    assert {"or", "re"} <= {word[:2] for word in names}


def test_a_body_is_shortened_at_its_end(name_servers: str, columns: int) -> None:
    text = "\n".join(lines_of(run(f"peek {TOPIC}", name_servers)))
    bodies = re.findall(r'(\{"o.*?) {2,}\d', text)
    assert len(bodies) == 10
    assert [each for each in bodies if "…" in each[:-1]] == []


def test_a_file_or_pipe_gets_whole_names(name_servers: str) -> None:
    text = run(f"lag {GROUP} {TOPIC}", name_servers).stdout
    assert f"{TOPIC}@broker-in-the-northern-hall/3" in text
    assert f"{TOPIC}, {OTHER_TOPIC}" in run("groups list", name_servers).stdout


def test_a_file_or_pipe_gets_each_step_of_a_check_on_one_line(name_servers: str) -> None:
    text = run(f"config check --topic {TOPIC} --group nobody-knows-it", name_servers).stdout
    assert all(line.startswith("ok ") for line in text.splitlines())
    assert any(
        line.endswith("it begins where consume_from_where says") for line in text.splitlines()
    )


@pytest.mark.parametrize("command", ["lag", "top", "locks", "groups describe", "lag --watch"])
def test_an_unknown_group_fails_alike_in_every_view(name_servers: str, command: str) -> None:
    got = run(f"{command} nobody", name_servers)
    assert got.exit_code == 1
    assert "group 'nobody' has no member and no offset" in got.stderr


def test_a_limit_and_a_view_without_end_exclude_each_other(name_servers: str) -> None:
    assert run(f"lag {GROUP} --watch --at-most 3", name_servers).exit_code == 2
