"""The Kubernetes manifests: rendered, validated, and the commands in them run as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from serving.cli import app
from serving.process import ServerProcess
from warmup.bundle.signature import generate

REPOSITORY = Path(__file__).resolve().parents[2]
KUBERNETES = REPOSITORY / "deploy/kubernetes"
VERSIONS = ("1.35", "1.36", "1.37")
CUSTOM = {
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "serving.kserve.io/v1alpha1": ("ClusterServingRuntime",),
    "serving.kserve.io/v1beta1": ("InferenceService",),
}


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects:
        if one["kind"] in ("Deployment", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "ClusterServingRuntime":
            yield one["metadata"]["name"], one["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def named(objects: list[dict[str, Any]], kind: str, name: str = "preheat") -> dict[str, Any]:
    return next(one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))


def test_every_object_is_valid_in_three_versions(rendered: dict[str, list[dict[str, Any]]]) -> None:
    seen = set()
    for objects in rendered.values():
        for one in objects:
            seen.add(one["kind"])
            if one["kind"] in CUSTOM.get(one["apiVersion"], ()):
                continue
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)
    assert {"Deployment", "Service", "Job", "HorizontalPodAutoscaler", "NetworkPolicy", "PrometheusRule"} <= seen


def test_an_object_that_is_not_valid_is_noticed(rendered: dict[str, list[dict[str, Any]]]) -> None:
    wrong = json.loads(json.dumps(named(rendered["cpu"], "Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_containers_are_locked_down(rendered: dict[str, list[dict[str, Any]]]) -> None:
    for objects in rendered.values():
        for name, pod in pods(objects):
            for container in containers(pod):
                security = {**pod.get("securityContext", {}), **container["securityContext"]}
                assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"] and security["runAsUser"], name
                assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
                assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
                assert container["resources"]["limits"]["memory"], name


def test_what_a_pod_refers_to_is_there(rendered: dict[str, list[dict[str, Any]]]) -> None:
    by_hand = {"preheat-trusted-keys", "preheat-signing-key"}  # docs/kubernetes.md makes them: they hold your keys
    for overlay, objects in rendered.items():
        there = {one["metadata"]["name"] for one in objects} | by_hand
        for _, pod in pods(objects):
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            for volume in volumes.values():
                named_things = (
                    volume.get("configMap", {}).get("name"),
                    volume.get("secret", {}).get("secretName"),
                    volume.get("persistentVolumeClaim", {}).get("claimName"),
                )
                assert {thing for thing in named_things if thing} <= there, overlay
            for container in containers(pod):
                assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes), overlay
                assert {source["configMapRef"]["name"] for source in container.get("envFrom", ())} <= there, overlay
                writable = [m["mountPath"] for m in container["volumeMounts"] if "emptyDir" in volumes[m["name"]]]
                for variable in container["env"]:
                    if variable["name"].startswith(("XDG_", "HOME")):
                        assert any(variable["value"].startswith(path) for path in writable), variable


def test_a_rollout_never_trades_a_warm_pod_for_a_cold_one(rendered: dict[str, list[dict[str, Any]]]) -> None:
    deployments = [one for objects in rendered.values() for one in objects if one["kind"] == "Deployment"]
    assert deployments
    for one in deployments:
        assert one["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        pod = one["spec"]["template"]["spec"]
        (server,) = pod["containers"]
        linger, patience = (
            float(re.search(rf"--drain-{what}=(\d+)", " ".join(server["args"])).group(1))  # type: ignore[union-attr]
            for what in ("linger", "patience")
        )
        assert pod["terminationGracePeriodSeconds"] > linger + patience
        assert linger > server["readinessProbe"]["periodSeconds"] * server["readinessProbe"]["failureThreshold"]


def test_gpu_pods_ask_for_the_same_kind_of_gpu(rendered: dict[str, list[dict[str, Any]]]) -> None:
    kinds = []
    for name, pod in pods(rendered["amd-gpu"]):
        assert pod["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1", name
        assert all("amd.com/gpu" not in init["resources"]["limits"] for init in pod.get("initContainers", ()))
        kinds.append(pod["affinity"]["nodeAffinity"])
    assert len(kinds) == 3 and all(kind == kinds[0] for kind in kinds)


def test_a_bundle_from_an_image_needs_no_volume_claim(rendered: dict[str, list[dict[str, Any]]]) -> None:
    (pod,) = [pod for _, pod in pods(rendered["oci-bundle"])]
    (bundles,) = [volume for volume in pod["volumes"] if volume["name"] == "bundles"]
    assert set(bundles) == {"name", "image"}
    assert "PersistentVolumeClaim" not in {one["kind"] for one in rendered["oci-bundle"]}


def test_commands_and_options_exist_and_probes_ask_what_the_server_answers(
    rendered: dict[str, list[dict[str, Any]]],
) -> None:
    root: Any = typer.main.get_command(app)
    asked = 0
    for objects in rendered.values():
        for _, pod in pods(objects):
            for container in containers(pod):
                for words in command_lines(container):
                    command = root
                    while hasattr(command, "get_command"):
                        command = command.get_command(typer.Context(command), words.pop(0))
                        assert command is not None
                    known = {option for parameter in command.params for option in parameter.opts}
                    options = {word.split("=")[0] for word in words if word.startswith("--")}
                    assert options <= known, command.name
                    asked += 1
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    if probe in container:
                        live = "live" if probe == "livenessProbe" else "ready"
                        assert container[probe]["httpGet"]["path"] == f"/v2/health/{live}"
    assert asked > 10


def command_lines(container: dict[str, Any]) -> list[list[str]]:
    """The words after ``preheat`` of every command that a container runs."""
    if "command" not in container:
        return [list(container["args"])]
    lines = re.findall(r"^\s*preheat (.+)$", container["args"][0], re.MULTILINE)
    return [line.split(" || ")[0].split() for line in lines]


def test_the_prometheus_rule_is_what_its_script_makes() -> None:
    spec = spec_from_file_location("prometheusrule", KUBERNETES / "prometheusrule.py")
    assert spec is not None and spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text(encoding="utf-8") == script.render(), "run deploy/kubernetes/prometheusrule.py"


def test_autoscaling_reads_what_the_adapter_serves(rendered: dict[str, list[dict[str, Any]]]) -> None:
    values = yaml.safe_load((KUBERNETES / "examples/prometheus-adapter-values.yaml").read_text())["rules"]
    served = {rule["name"]["as"] for kind in ("custom", "external") for rule in values[kind]}
    wanted = {
        metric[metric["type"].lower()]["metric"]["name"]
        for metric in named(rendered["cpu"], "HorizontalPodAutoscaler")["spec"]["metrics"]
    }
    assert wanted == served


MODEL = """
name: echo
version: "1"
engine: {kind: python, source: "echo.py:Echo"}
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
shapes: {grid: {batch: [1, 2], width: [2, 3]}}
cold: reject
"""


class Cluster:
    """Runs the containers of rendered manifests as processes: each mount path is a folder below ``root``."""

    def __init__(self, root: Path, objects: list[dict[str, Any]]) -> None:
        self.root, self.objects = root, objects
        self.variables: dict[str, str] = {}
        for one in objects:
            if one["kind"] == "ConfigMap" and all(re.fullmatch(r"[A-Z_]+", key) for key in one["data"]):
                self.variables.update(one["data"])

    def here(self, text: str, pod: str) -> str:
        for path, place in (
            ("/var/lib/preheat", f"{pod}/scratch"),
            ("/etc/preheat", "etc"),
            ("/bundles", "bundles"),
        ):
            text = text.replace(path, str(self.root / place))
        return text

    def environment(self, container: dict[str, Any], pod: str) -> dict[str, str]:
        folder = self.root / pod / "scratch"
        folder.mkdir(parents=True, exist_ok=True)
        given = {**self.variables, **{variable["name"]: variable["value"] for variable in container["env"]}}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PREHEAT_"))}
        return {
            **inherited,
            **{name: self.here(value, pod) for name, value in given.items()},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PREHEAT_MODEL_STORE": str(self.root / "models"),
        }

    def command(self, container: dict[str, Any], pod: str) -> list[str]:
        words = [*container.get("command", ["preheat"]), *container["args"]]
        variables = self.environment(container, pod)
        return [
            re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), self.here(word, pod))
            for word in words
        ]

    def run(self, container: dict[str, Any], pod: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment(container, pod), **more}
        return subprocess.run(self.command(container, pod), env=environment, capture_output=True, text=True)

    def kill_in_the_middle(self, container: dict[str, Any], pod: str, **more: str) -> None:
        """Starts a sweep and kills everything of it once its journal has begun."""
        environment = {**self.environment(container, pod), **more}
        process = subprocess.Popen(self.command(container, pod), env=environment, start_new_session=True)
        deadline = time.monotonic() + 60
        while not list((self.root / pod).glob("scratch/.*.sweep/journal.jsonl")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL


@pytest.mark.slow
def test_job_init_container_and_server_run_as_they_are_written(
    tmp_path: Path, rendered: dict[str, list[dict[str, Any]]]
) -> None:
    cluster = Cluster(tmp_path, rendered["cpu"])
    model = tmp_path / "models/echo"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text(MODEL)
    (model / "echo.py").write_text("class Echo:\n    def run(self, inputs):\n        return {'y': inputs['x']}\n")
    for folder in ("keys", "signing"):
        (tmp_path / "etc" / folder).mkdir(parents=True)
    generate(tmp_path / "etc/signing/pipeline.pem", tmp_path / "etc/keys/pipeline.pub")
    (warm,) = named(cluster.objects, "Job", "preheat-shards")["spec"]["template"]["spec"]["containers"]
    (publish,) = named(cluster.objects, "Job", "preheat-publish")["spec"]["template"]["spec"]["containers"]
    pod = named(cluster.objects, "Deployment")["spec"]["template"]["spec"]

    done = cluster.run(warm, "shard-0", JOB_COMPLETION_INDEX="0")
    assert done.returncode == 0, done.stderr
    early = cluster.run(publish, "publish")
    assert early.returncode == 1 and "2-of-2: no bundle here" in early.stderr  # names the shard that is missing
    assert not (tmp_path / "bundles/v1").exists()

    cluster.kill_in_the_middle(warm, "shard-1", JOB_COMPLETION_INDEX="1")
    assert not (tmp_path / "bundles/shards/v1/2-of-2").exists()
    done = cluster.run(warm, "shard-1", JOB_COMPLETION_INDEX="1")  # the kubelet starts the container again
    assert done.returncode == 0, done.stderr
    done = cluster.run(publish, "publish")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundles/v1/manifest.sig").exists()

    done = cluster.run(pod["initContainers"][0], "server")
    assert done.returncode == 0, done.stderr
    (server,) = pod["containers"]
    arguments = [word for word in cluster.command(server, "server")[2:] if not word.startswith(("--host", "--port"))]
    running = ServerProcess(arguments, cluster.environment(server, "server"))
    try:
        running.wait_ready(120)
        (gate,) = named(rendered["rollout-gate"], "Job", "preheat-gate")["spec"]["template"]["spec"]["containers"]
        here = {"http://preheat": running.url, "--model=digits": "--model=echo", "--max-p99=1": "--max-p99=60"}
        done = cluster.run({**gate, "args": [here.get(word, word) for word in gate["args"]]}, "gate")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        assert running.stop() == 0
