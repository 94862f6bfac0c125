"""Published samples and test suites of the old clients pass on ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dropin.old_programs import Program, copied, examples, run_suite, with_our_import
from tests.dropin.test_old_packages import needed

pytestmark = pytest.mark.timeout(400)
SAMPLES = {
    "2.0.0, as published": "rocketmq-client-python-2.0.0",
    "2.0.0, as developed since": "apache-main",
}


@pytest.fixture(params=SAMPLES.values(), ids=SAMPLES)
def samples(request: pytest.FixtureRequest, fetched: Path, tmp_path: Path) -> Path:
    needed(fetched, request.param)
    (folder,) = (fetched / request.param).rglob("samples")
    return copied(folder, tmp_path / "samples")


@pytest.fixture
def programs(name_server: None) -> Iterator[list[Program]]:
    """Those a test started; ended after it, before the broker."""
    started: list[Program] = []
    yield started
    for program in started:
        program.end()


def test_only_imports_are_changed() -> None:
    assert with_our_import("import rocketmq.client as r\n    from rocketmq.consts import X\n") == (
        "import ordermq.rocketmq.client as r\n    from ordermq.rocketmq.consts import X\n"
    )
    for other in ("# from rocketmq\n", "x = 'import rocketmq'\n", "import rocketmq_other\n"):
        assert with_our_import(other) == other


@pytest.mark.parametrize(
    ("suite", "count"), [("apache-2.0.0", 7), ("apache-main", 8), ("messense-0.4.4", 10)]
)
def test_the_published_suite_passes(
    fetched: Path, tmp_path: Path, name_server: None, suite: str, count: int
) -> None:
    needed(fetched, suite)
    folder = copied(fetched / suite / "tests", tmp_path / "tests")
    ended = run_suite(folder, 300.0)
    assert ended == dict.fromkeys(ended, "passed")
    assert len(ended) == count


def test_the_samples_send_and_consume(samples: Path, programs: list[Program]) -> None:
    sent = Program(samples, "producer.py").finish()
    ids = [line.split("msgId: ")[1] for line in sent if "msgId: " in line]
    assert len(set(ids)) == 10
    assert sent[-1] == "send sync message done"
    consumer = Program(samples, "consumer.py")
    programs.append(consumer)
    # Its threads print at once and piece by piece: lines mix, pieces are whole.
    pieces = [*ids, *["b'message body'"] * len(ids), *["b'test'"] * len(ids)]
    consumer.wait_for(
        lambda lines: all("".join(lines).count(each) >= pieces.count(each) for each in set(pieces))
    )


def test_the_sample_of_sharding_keys_sends(samples: Path, programs: list[Program]) -> None:
    call = "import producer; producer.send_orderly_with_sharding_key(5)"
    lines = Program(samples, "-c", call).finish()
    assert len([line for line in lines if "msgId: " in line]) == 5
    assert lines[-1] == "send sync order message done"


def test_the_sample_of_transactions_is_asked_about_each(
    samples: Path, programs: list[Program]
) -> None:
    program = Program(samples, "-c", "import producer; producer.send_transaction_message(3)")
    programs.append(program)
    program.wait_for(lambda lines: lines.count("check: message body") == 3)
    assert program.lines.count("local:   message body") == 3


def test_the_sample_of_many_threads_sends(fetched: Path, tmp_path: Path, name_server: None) -> None:
    needed(fetched, "apache-main")
    samples = copied(fetched / "apache-main" / "samples", tmp_path / "samples")
    lines = Program(samples, "-c", "import producer; producer.send_message_multi_threaded(3)")
    assert "msgId: " in "".join(lines.finish())


def readme_of(fetched: Path, client: str) -> Path:
    needed(fetched, client)
    name = "README.md" if client != "rocketmq-0.4.4" else "METADATA"
    return min((fetched / client).rglob(name), key=lambda path: len(path.parts))


@pytest.mark.parametrize(
    "client", ["rocketmq-client-python-2.0.0", "apache-main", "messense-0.4.4", "rocketmq-0.4.4"]
)
def test_the_examples_of_the_readme_run(
    fetched: Path, tmp_path: Path, programs: list[Program], domain: str, client: str
) -> None:
    # They leave open where the name server is; what they have there instead is a cloud's domain.
    written = examples(readme_of(fetched, client))
    assert len(written) >= 2
    for number, text in enumerate(written):
        (tmp_path / f"example{number}.py").write_text(with_address(text, domain))
    first = Program(tmp_path, "example0.py").finish()
    message_id = first[-1].split()[1]
    for number in range(1, len(written)):
        consumer = Program(tmp_path, f"example{number}.py")
        programs.append(consumer)
        consumer.wait_for(
            lambda lines: message_id in "".join(lines) and " b'XXXX'" in "".join(lines)
        )


def with_address(example: str, domain: str) -> str:
    placeholder = "http://onsaddr-internet.aliyun.com/rocketmq/nsaddr4client-internet"
    return example.replace(placeholder, domain)
