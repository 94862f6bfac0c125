"""examples/deploy: valid for Compose and Kubernetes, and true to the consumer that they run.

No image is pulled: Compose's schema and Kubernetes' models come with packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightkube import codecs

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.config import ConsumerConfig
from tests.component.conftest import eventually
from tests.component.test_cli_run import Run

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
DOCUMENTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
NAMES = [f"{each['kind']} {each['metadata']['name']}" for each in DOCUMENTS]


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENTS[NAMES.index(name)]
    return found


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(name)["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    return dict(found)


def environment(name: str) -> dict[str, str]:
    """The variables of a container that have a value of their own."""
    return {each["name"]: each["value"] for each in container(name)["env"] if "value" in each}


def command() -> list[str]:
    """The whole command of the image."""
    text = (FOLDER / "Dockerfile").read_text()
    return [
        part
        for word in ("ENTRYPOINT", "CMD")
        for part in json.loads(re.findall(rf"^{word} (\[.*\])$", text, re.MULTILINE)[0])
    ]


def conforms_to_compose(file: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def test_compose_takes_the_file_and_would_refuse_a_misspelt_one(tmp_path: Path) -> None:
    assert conforms_to_compose(FOLDER / "compose.yaml")
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text((FOLDER / "compose.yaml").read_text().replace("healthcheck", "helthcheck"))
    assert not conforms_to_compose(misspelt)


@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_every_document_whole(name: str) -> None:
    # A field that Kubernetes does not know is left out by its model.
    assert codecs.from_dict(document(name)).to_dict() == document(name)


def test_a_misspelt_or_wrong_field_would_be_found() -> None:
    probe = container("Deployment billing")["readinessProbe"]
    whole = json.dumps(document("Deployment billing"))
    misspelt = json.loads(whole.replace('"timeoutSeconds"', '"timeoutSecond"'))
    assert codecs.from_dict(misspelt).to_dict() != misspelt
    wrong = json.loads(whole.replace(json.dumps(probe), json.dumps({**probe, "httpGet": "/ready"})))
    with pytest.raises(msgspec.ValidationError):
        codecs.from_dict(wrong)


def test_the_environment_is_made_of_settings_and_names_a_service() -> None:
    of_compose = COMPOSE["billing"]["environment"]
    assert of_compose == environment("Deployment billing")
    config = ConsumerConfig.from_env(environ=of_compose)
    host, port = str(config.name_servers).split(":")
    assert (config.group, host in COMPOSE) == ("billing", True)
    (service_port,) = document(f"Service {host}")["spec"]["ports"]
    assert service_port["port"] == int(port)
    known = ConsumerConfig.kinds().keys()
    names = [each["name"] for each in container("Deployment billing")["env"]]
    assert {name.removeprefix("ORDERMQ_").lower() for name in names} <= known


def test_clients_are_told_names_that_exist() -> None:
    in_compose = (FOLDER / "broker.conf").read_text()
    on_kubernetes = document("ConfigMap broker")["data"]["broker.conf"]
    name = re.compile(r"^brokerIP1 = (.*)$", re.MULTILINE)
    assert name.findall(in_compose) == ["broker"]
    broker = document("StatefulSet broker")
    pod_name = f"{broker['metadata']['name']}-0.{broker['spec']['serviceName']}"
    whole = f"{pod_name}.{broker['metadata']['namespace']}.svc.cluster.local"
    assert name.findall(on_kubernetes) == [whole]
    # The comments differ; each setting is the same.
    settings = re.compile(r"^\w+ = .*$", re.MULTILINE)
    assert [each for each in settings.findall(in_compose) if "brokerIP1" not in each] == [
        each for each in settings.findall(on_kubernetes) if "brokerIP1" not in each
    ]
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    for told in ("broker", whole):
        assert f"export ORDERMQ_ADDRESS_MAP={told}:10911=localhost:10911\n" in page


def test_services_select_pods_and_stops_are_given_time() -> None:
    for name in NAMES:
        if name.startswith("Service "):
            kind = "StatefulSet" if name == "Service broker" else "Deployment"
            app = name.replace("Service", kind)
            labels = document(app)["spec"]["template"]["metadata"]["labels"]
            assert document(name)["spec"]["selector"] == labels
            assert document(app)["spec"]["selector"]["matchLabels"] == labels
    stop_timeout_s = 60  # the default of `ordermq run`
    assert pod("Deployment billing")["terminationGracePeriodSeconds"] > stop_timeout_s
    assert int(COMPOSE["billing"]["stop_grace_period"].removesuffix("s")) > stop_timeout_s


def test_the_consumer_runs_by_the_command_of_the_image_and_its_probes_answer(
    broker: EmbeddedBroker, producer: Producer, tmp_path: Path
) -> None:
    billing = container("Deployment billing")
    assert billing["args"] == command()[-len(billing["args"]) :]
    (port,) = billing["ports"]
    assert f"--metrics-port={port['containerPort']}" in command()
    here = {"--metrics-host=0.0.0.0": "--metrics-host=127.0.0.1", "--metrics-port=9100":
            "--metrics-port=0", "--processes=2": "--processes=1"}  # fmt: skip
    started = [here.get(part, part) for part in command()[1:]]
    # The topic is there before the consumer: one that is not is looked for every 20 s.
    producer.send(Message("orders", b"one book"), sharding_key="o-17")
    variables = {
        **os.environ,
        **environment("Deployment billing"),
        "ORDERMQ_NAME_SERVERS": broker.name_servers,
        "PYTHONPATH": str(FOLDER.parents[1]),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ordermq", *started],
            cwd=FOLDER,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    run = Run(tmp_path, process)
    try:
        run.wait_for_log("metrics at")
        ready, live = (billing[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe"))
        assert {ready["port"], live["port"]} == {port["name"]}
        eventually(lambda: run.get(ready["path"])[0] == 200, f"it is ready: {run.log}", 60)
        assert run.get(live["path"])[0] == 200
        annotations = document("Deployment billing")["spec"]["template"]["metadata"]["annotations"]
        assert "ordermq_run_process_up" in run.get(annotations["prometheus.io/path"])[1]
        run.wait_for_log("billed o-17: one book")
        process.terminate()
        run.ends_with(0)
    finally:
        process.kill()
        process.wait()
