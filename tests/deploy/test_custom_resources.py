"""Objects of the operators: against the types that these publish, and by hand where nobody publishes any for Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "deploy/kubernetes/examples"
KUBERNETES = "1.36"
POD_FIELDS = ("containers", "volumes", "affinity", "tolerations", "nodeSelector", "imagePullSecrets")


@dataclass(frozen=True)
class Published:
    """One of KServe's types: the type of each field, by its name in JSON, and the fields that must be there."""

    fields: dict[str, str]
    required: frozenset[str]


@cache
def kserve_types() -> dict[str, Published]:
    """All types, read from the source that KServe generates from its CRDs; nothing of it is imported or run."""
    found = {}
    for file in files("kserve") or ():
        if file.match("kserve/models/v1*.py"):
            text = file.read_text(encoding="utf-8")
            (model,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
            tables = {
                node.targets[0].id: ast.literal_eval(node.value)
                for node in model.body
                if isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and ast.unparse(node.value)[0] == "{"
            }
            names = tables["attribute_map"]
            needed = set(re.findall(r"Invalid value for `(\w+)`, must not be `None`", text))
            found[model.name] = Published(
                {names[name]: kind for name, kind in tables["openapi_types"].items()},
                frozenset(names[name] for name in needed),
            )
    assert len(found) > 50
    return found


def faults(value: Any, kind: str, where: str) -> Iterator[str]:
    """What of a value is not of a type; types of Kubernetes itself are checked elsewhere, so all are taken here."""
    plain = {"str": str, "int": int, "bool": bool, "float": float}
    if kind.startswith("list["):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, item in enumerate(value):
            yield from faults(item, kind[5:-1], f"{where}[{number}]")
    elif kind == "dict(str, str)":
        if not isinstance(value, dict) or not all(isinstance(text, str) for pair in value.items() for text in pair):
            yield f"{where} is no map of strings"
    elif kind in plain:
        if type(value) is not plain[kind]:
            yield f"{where} is {value!r}, not {kind}"
    elif kind in kserve_types():
        published = kserve_types()[kind]
        yield from (f"{where} has no {name}" for name in sorted(published.required - value.keys()))
        for name, inner in value.items():
            if name not in published.fields:
                yield f"{where} has {name}, which {kind} has not"
            else:
                yield from faults(inner, published.fields[name], f"{where}.{name}")


def kserve_faults(one: dict[str, Any]) -> list[str]:
    version = one["apiVersion"].rpartition("/")[2].capitalize()
    return list(faults(one, f"{version}{one['kind']}", one["kind"]))


def operator_faults(one: dict[str, Any]) -> list[str]:
    """The Prometheus operator's types ignore what they do not know, so an unknown field is one that is lost."""
    kind = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}[one["kind"]]
    try:
        read = kind.model_validate(one)
    except ValueError as error:
        return [str(error)]
    return [] if read.model_dump(mode="json", by_alias=True, exclude_unset=True) == one else ["a field is not known"]


CHECKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "monitoring.coreos.com/v1": operator_faults,
    "serving.kserve.io/v1alpha1": kserve_faults,
    "serving.kserve.io/v1beta1": kserve_faults,
}


def of(rendered: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """One object of each custom kind."""
    return {one["kind"]: one for objects in rendered.values() for one in objects if one["apiVersion"] in CHECKS}


def test_every_custom_object_is_of_its_published_type(rendered: dict[str, list[dict[str, Any]]]) -> None:
    assert set(of(rendered)) == {"PodMonitor", "PrometheusRule", "ClusterServingRuntime", "InferenceService"}
    for objects in rendered.values():
        for one in objects:
            if one["apiVersion"] in CHECKS:
                assert CHECKS[one["apiVersion"]](one) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "intervall"), "15s"),
        ("PodMonitor", ("spec", "selector"), None),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "expresion"), "up"),
        ("PrometheusRule", ("spec", "groups", 0, "name"), 3),
        ("ClusterServingRuntime", ("spec", "protocolVersion"), ["v2"]),
        ("ClusterServingRuntime", ("spec", "supportedModelFormats", 0, "autoSelect"), "yes"),
        ("InferenceService", ("spec", "predictor", "model", "modelFormat"), None),
        ("InferenceService", ("spec", "predictor", "minReplica"), 2),
    ],
)
def test_a_fault_is_noticed(
    rendered: dict[str, list[dict[str, Any]]], kind: str, path: tuple[str | int, ...], value: Any
) -> None:
    one = json.loads(json.dumps(of(rendered)[kind]))
    place = one
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    assert CHECKS[one["apiVersion"]](one) != []


def test_the_pods_within_a_runtime_are_kubernetes_own(rendered: dict[str, list[dict[str, Any]]]) -> None:
    spec = of(rendered)["ClusterServingRuntime"]["spec"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "labels": spec["labels"], "annotations": spec["annotations"]},
        "spec": {name: spec[name] for name in POD_FIELDS if name in spec},
    }
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    strategy = of(rendered)["InferenceService"]["spec"]["predictor"]["deploymentStrategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 0


def test_the_service_asks_for_what_the_runtime_offers(rendered: dict[str, list[dict[str, Any]]]) -> None:
    runtime, service = of(rendered)["ClusterServingRuntime"], of(rendered)["InferenceService"]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    formats = [{"name": each["name"], "version": each["version"]} for each in runtime["spec"]["supportedModelFormats"]]
    assert model["modelFormat"] in formats


# Argo Rollouts: the fields of an AnalysisTemplate that this one needs, from its specification.
METRIC = {"name", "interval", "count", "failureLimit", "successCondition", "provider"}


def test_the_analysis_template_has_the_fields_of_its_specification_and_uses_every_argument() -> None:
    text = (EXAMPLES / "analysistemplate.yaml").read_text(encoding="utf-8")
    one = yaml.safe_load(text)
    assert (one["apiVersion"], one["kind"]) == ("argoproj.io/v1alpha1", "AnalysisTemplate")
    assert set(one) == {"apiVersion", "kind", "metadata", "spec"} and set(one["spec"]) == {"args", "metrics"}
    given = {argument["name"]: argument for argument in one["spec"]["args"]}
    assert all(set(argument) <= {"name", "value"} for argument in given.values())
    assert set(re.findall(r"\{\{args\.([\w-]+)\}\}", text)) == set(given)
    for metric in one["spec"]["metrics"]:
        assert set(metric) == METRIC
        assert re.fullmatch(r"\d+[smh]", metric["interval"]) and metric["count"] > metric["failureLimit"]
        assert set(metric["provider"]) == {"prometheus"} and set(metric["provider"]["prometheus"]) == {
            "address",
            "query",
        }


def test_the_adapter_s_rules_have_the_fields_of_its_configuration() -> None:
    values = yaml.safe_load((EXAMPLES / "prometheus-adapter-values.yaml").read_text(encoding="utf-8"))
    assert set(values) == {"rules"} and set(values["rules"]) == {"default", "custom", "external"}
    for rule in values["rules"]["custom"] + values["rules"]["external"]:
        assert set(rule) == {"seriesQuery", "resources", "name", "metricsQuery"}
        assert set(rule["resources"]) == {"overrides"} and set(rule["name"]) == {"as"}
        for label, resource in rule["resources"]["overrides"].items():
            assert set(resource) == {"resource"} and f'{label}!=""' in rule["seriesQuery"]
