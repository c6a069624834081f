"""What stops a start with the real providers, where ONNX Runtime by itself would go on with the CPU."""

from __future__ import annotations

import pytest

from handlers.engines.providers import OPTIONS

pytestmark = pytest.mark.miopen
SHAPE = ["x=1x3x20x20:fp32"]
PROVIDERS = ["rocm", "migraphx"]
GOES_ON = """
import sys
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=[sys.argv[2] + "ExecutionProvider"])
print(*session.get_providers())
"""
TAKES = """
import sys
import onnxruntime
name = sys.argv[2] + "ExecutionProvider"
print(*onnxruntime.InferenceSession(sys.argv[1], providers=[name]).get_provider_options()[name])
"""


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def python(provider: str, request: pytest.FixtureRequest):
    return request.getfixturevalue(provider)


@pytest.mark.parametrize("after", ["", ", cpu"])
@pytest.mark.parametrize(("provider", "library"), [("rocm", "libhipblas.so.3"), ("migraphx", "libmigraphx_c.so.3")])
def test_a_library_that_is_missing(python, provider, library, after, without, model, machine, run_model, tmp_path):
    (answer,) = run_model(without(python, library), machine, tmp_path, (model("net", provider + after), SHAPE))
    assert f"ExecutionProvider does not load: {library}: cannot open shared object file" in answer["error"]
    assert answer["error"].startswith(f"net: {provider}: ")
    assert answer["error"].endswith(f"install what is missing, or take {provider} out of engine.providers")


def test_onnx_runtime_itself_goes_on_without_the_library(rocm, without, model, machine):
    """Why: it says so on standard error alone, and the model is as slow as the CPU is."""
    broken = without(rocm, "libhipblas.so.3")
    done = broken.run(machine, "-c", GOES_ON, str(model("net", "rocm") / "net.onnx"), "ROCM")
    assert done.stdout.split()[-1] == "CPUExecutionProvider" and "ROCM" not in done.stdout
    assert "libhipblas.so.3: cannot open shared object file" in done.stderr


def test_a_machine_without_a_device(python, provider, model, machine, run_model, tmp_path):
    folder = model("net", f"{provider}, cpu")
    (answer,) = run_model(python, machine, tmp_path, (folder, SHAPE), STANDIN_DEVICES="0")
    assert answer["error"] == f"net: {provider}: HIP failure 100: the stand-in has no device"


def test_a_device_that_is_not_there(python, provider, model, machine, run_model, tmp_path):
    folder = model("net", f"{provider}, cpu", more=f', options: {{{provider}: {{device_id: "3"}}}}')
    (answer,) = run_model(python, machine, tmp_path, (folder, SHAPE))
    assert answer["error"].startswith(f'net: {provider}: Failed to parse provider option "device_id": ')
    assert answer["error"].endswith("Invalid device ID: 3, must be between 0 (inclusive) and 1 (exclusive).")


def test_an_option_that_is_misspelt(python, provider, model, machine, run_model, tmp_path):
    folder = model("net", f"{provider}, cpu", more=f', options: {{{provider}: {{devise_id: "0"}}}}')
    (answer,) = run_model(python, machine, tmp_path, (folder, SHAPE))
    assert answer["error"].startswith(f"net: engine.options.{provider}: unknown 'devise_id'; allowed: device_id, ")


def test_nodes_that_the_provider_does_not_take(python, provider, model, machine, run_model, tmp_path):
    reason = {"rocm": "ROCM kernel not found in registries", "migraphx": "MIGraphXExecutionProvider does not take it"}
    strict = model("strict", provider, op="Det")
    half = model("half", provider, op="Det", more=", min_placement: 0.5")
    most = model("most", provider, op="Det", more=", min_placement: 0.9")
    small = ["x=1x3x8x8:fp32"]  # of a larger one MIGraphX takes nothing, as soon as one node is not for it
    answers = run_model(python, machine, tmp_path, (strict, small), (half, small), (most, small))
    refused = [answer["error"] for answer in answers if "error" in answer]
    assert [answer["outputs"]["y"] for answer in answers if "outputs" in answer] == [[1, 4]], "0.5 allows it"
    assert len(refused) == 2
    assert f"nodes would run on the CPU instead of {provider}: Det 'odd' ({reason[provider]})" in refused[0]
    assert "nodes, engine.min_placement is 90.0%: Det 'odd' (" in refused[1]


def test_the_options_are_those_that_the_provider_takes(python, provider, model, machine):
    name = {"rocm": "ROCM", "migraphx": "MIGraphX"}[provider]
    done = python.run(machine, "-c", TAKES, str(model("net", provider) / "net.onnx"), name)
    taken = set(done.stdout.splitlines()[-1].split())
    assert OPTIONS[provider].keys() <= taken, done.stderr
    left = {option for option in taken - OPTIONS[provider].keys() if "external" not in option and "user" not in option}
    assert left == {"rocm": {"enable_hip_graph"}, "migraphx": {"migraphx_model_cache_dir"}}[provider]
