"""The jars of a version: Maven fetches them once, outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from console import CommandError, report

VERSIONS = ("5.3.3", "5.5.0", "5.4.0", "4.9.7")  # known to start
ARTIFACTS = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-client", "rocketmq-tools")
PROXY = ("rocketmq-proxy",)  # gRPC and half a hundred jars more: fetched by who asks for it
# RocketMQ 5's own client for Java, which has versions of its own.
GRPC_CLIENT = ("rocketmq-client-java",)
_PLACES = {ARTIFACTS: "", PROXY: "-proxy", GRPC_CLIENT: "-grpc-client"}


def class_path(version: str, artifacts: tuple[str, ...] = ARTIFACTS) -> str:
    """Fetch the jars of a version unless they are there; where they are, as java -cp wants it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ordermq"
    jars = cache / f"rocketmq-{version}{_PLACES[artifacts]}"
    if not (jars / "done").exists():
        report(f"fetching RocketMQ {version} into {jars}")
        jars.mkdir(parents=True, exist_ok=True)
        pom = jars / "pom.xml"
        pom.write_text(project_of(version, artifacts))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        maven = subprocess.run(["mvn", "-q", "-B", "-f", pom, *goal], stdout=sys.stderr)
        if maven.returncode:
            raise CommandError(f"Maven could not fetch RocketMQ {version}; see its messages above")
        (jars / "done").touch()
    return f"{jars}/*"


def project_of(version: str, artifacts: tuple[str, ...]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for artifact in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>ordermq</groupId>"
        "<artifactId>rocketmq</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )
