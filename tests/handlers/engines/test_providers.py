"""Options are checked before there is a session, and a provider by loading it."""

from __future__ import annotations

import onnxruntime
import pytest

from handlers.engines.providers import OPTIONS, Unavailable, Unusable, check_available, check_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rocm": {"gpu_mem_limt": "1"}}, r"engine.options.rocm: unknown 'gpu_mem_limt'; allowed: device_id, gpu_mem_"),
        ({"rocm": {"device_id": "first"}}, r"engine.options.rocm.device_id: expected a whole number \(found 'first'\)"),
        ({"migraphx": {"migraphx_fp16_enable": "yes"}}, r"migraphx_fp16_enable: expected 0 or 1 \(found 'yes'\)"),
        ({"migraphx": {"migraphx_model_cache_dir": "/x"}}, "not to be set: every shape has a directory of its own"),
        ({"rocm": {"enable_hip_graph": "1"}}, "a captured graph is replayed whatever the shape"),
        ({"cuda": {"enable_cuda_graph": "1"}}, "a captured graph is replayed whatever the shape"),
        ({"cpu": {"threads": "1"}}, "engine.options.cpu: unknown 'threads'; allowed: none"),
        ({"gpu": {}}, r"engine.options: unknown \['gpu'\]; allowed: migraphx, rocm, cuda, cpu, session"),
        (
            {"session": {"session.intra_op.allow_spining": "0"}},
            "has no session option 'session.intra_op.allow_spining'",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        check_options(options)


def test_what_providers_and_sessions_take_is_taken() -> None:
    check_options(
        {
            "migraphx": {
                "migraphx_fp16_enable": "1",
                "device_id": "0",
                "migraphx_arena_extend_strategy": "kNextPowerOfTwo",
            },
            "rocm": {"miopen_conv_use_max_workspace": "1", "gpu_mem_limit": "1073741824"},
            "session": {"session.intra_op.allow_spinning": "0", "session.set_denormal_as_zero": "1"},
        }
    )


def test_the_cpu_is_always_there_and_another_build_is_the_next_ones_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    check_available("cpu")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(Unavailable, match=r"was built without ROCMExecutionProvider \(it has CPUExecutionProvider\)"):
        check_available("rocm")


def test_a_listed_provider_whose_library_does_not_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["MIGraphXExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "__file__", "/no/such/onnxruntime/__init__.py")
    message = r"MIGraphXExecutionProvider does not load: .*cannot open shared object file.*take migraphx out of engine"
    with pytest.raises(Unusable, match=message):
        check_available("migraphx")


def test_variables_that_override_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["MIGraphXExecutionProvider"])
    monkeypatch.setenv("ORT_MIGRAPHX_FP16_ENABLE", "1")
    with pytest.raises(Unusable, match=r"\$ORT_MIGRAPHX_FP16_ENABLE overrides engine.options.migraphx"):
        check_available("migraphx")


def test_every_provider_has_its_options() -> None:
    assert all(OPTIONS[name] for name in ("migraphx", "rocm", "cuda"))
    assert all("device_id" in OPTIONS[name] for name in ("migraphx", "rocm", "cuda"))
