"""ONNX Runtime's execution providers: which options they take, and whether they can really be had here.

``onnxruntime.get_available_providers()`` lists what a build was made for, whatever is missing on the machine, and a
session then runs on the CPU. So the provider's library is loaded first: the reason is then the loader's own.

Options are checked before there is a session. Names are those of ``onnxruntime/core/providers/*/*_provider_info.cc``
and of ``InferenceSession.get_provider_options()`` of ONNX Runtime 1.22 (ROCm), 1.27 (MIGraphX) and 1.32 (CUDA).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

PROVIDERS = {
    "migraphx": "MIGraphXExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
SESSION = "session"  # options of the session beside those of a provider: SessionOptions.add_session_config_entry
EXHAUSTIVE = "miopen_conv_exhaustive_search"
_SHARED = "libonnxruntime_providers_shared.so"

_FLAG = ("0 or 1", re.compile("0|1|[Tt]rue|[Ff]alse"))
_WHOLE = ("a whole number", re.compile(r"\d{1,20}"))
_TEXT = ("a text", re.compile(".+"))
_ARENA = ("kNextPowerOfTwo or kSameAsRequested", re.compile("kNextPowerOfTwo|kSameAsRequested"))
_TUNABLE = {
    "tunable_op_enable": _FLAG,
    "tunable_op_tuning_enable": _FLAG,
    "tunable_op_max_tuning_duration_ms": _WHOLE,
}
_MEMORY = {
    "device_id": _WHOLE,
    "gpu_mem_limit": _WHOLE,
    "arena_extend_strategy": _ARENA,
    "do_copy_in_default_stream": _FLAG,
}
OPTIONS: dict[str, dict[str, tuple[str, re.Pattern[str]]]] = {
    "migraphx": {
        "device_id": _WHOLE,
        "migraphx_fp16_enable": _FLAG,
        "migraphx_bf16_enable": _FLAG,
        "migraphx_fp8_enable": _FLAG,
        "migraphx_int8_enable": _FLAG,
        "migraphx_int8_calibration_table_name": _TEXT,
        "migraphx_int8_use_native_calibration_table": _FLAG,
        "migraphx_exhaustive_tune": _FLAG,
        "migraphx_mem_limit": _WHOLE,
        "migraphx_arena_extend_strategy": _ARENA,
    },
    "rocm": {**_MEMORY, **_TUNABLE, EXHAUSTIVE: _FLAG, "miopen_conv_use_max_workspace": _FLAG},
    "cuda": {
        **_MEMORY,
        **_TUNABLE,
        "cudnn_conv_algo_search": ("EXHAUSTIVE, HEURISTIC or DEFAULT", re.compile("EXHAUSTIVE|HEURISTIC|DEFAULT")),
        "cudnn_conv_use_max_workspace": _FLAG,
        "cudnn_conv1d_pad_to_nc1d": _FLAG,
        "enable_skip_layer_norm_strict_mode": _FLAG,
        "fuse_conv_bias": _FLAG,
        "prefer_nhwc": _FLAG,
        "sdpa_kernel": _WHOLE,
        "use_ep_level_unified_stream": _FLAG,
        "use_tf32": _FLAG,
    },
    "cpu": {},
}
_GRAPH = "a captured graph is replayed whatever the shape of the inputs, so all shapes but one would be wrong"
_REFUSED = {
    "migraphx_model_cache_dir": "every shape has a directory of its own in the store, since names there collide",
    "enable_hip_graph": _GRAPH,
    "enable_cuda_graph": _GRAPH,
}
# Variables of the MIGraphX provider take the place of its options, unseen by whatever is keyed by these.
_OVERRIDES = "ORT_MIGRAPHX_"
_DUMP = "ORT_MIGRAPHX_DUMP_MODEL_OPS"  # only prints


class Unavailable(Exception):
    """The installed ONNX Runtime cannot run this model on this provider: the next one in the list may."""


class Unusable(Exception):
    """A provider or option that was asked for and does not work; the message says why, and what to do."""


def check_options(options: Mapping[str, Mapping[str, str]]) -> None:
    """Raises Unusable on a provider, an option or a value that would do nothing, or send the model to the CPU."""
    allowed = [*PROVIDERS, SESSION]
    unknown = sorted(options.keys() - set(allowed))
    if unknown:
        raise Unusable(f"engine.options: unknown {unknown}; allowed: {', '.join(allowed)}")
    for provider, given in options.items():
        where = f"engine.options.{provider}"
        for name, value in given.items():
            if provider == SESSION:
                if not _knows_key(name):
                    raise Unusable(f"{where}: onnxruntime {onnxruntime.__version__} has no session option {name!r}")
                continue
            if name in _REFUSED:
                raise Unusable(f"{where}.{name}: not to be set: {_REFUSED[name]}")
            kind = OPTIONS[provider].get(name)
            if kind is None:
                raise Unusable(f"{where}: unknown {name!r}; allowed: {', '.join(OPTIONS[provider]) or 'none'}")
            if not kind[1].fullmatch(value):
                raise Unusable(f"{where}.{name}: expected {kind[0]} (found {value!r})")


def check_available(provider: str) -> None:
    """Raises Unavailable where the build lacks the provider, Unusable where it has it and its library does not load."""
    name = PROVIDERS[provider]
    listed = onnxruntime.get_available_providers()
    if name not in listed:
        raise Unavailable(
            f"onnxruntime {onnxruntime.__version__} was built without {name} (it has {', '.join(listed)})"
        )
    if provider == "migraphx":
        overrides = sorted(key for key in os.environ if key.startswith(_OVERRIDES) and key != _DUMP)
        if overrides:
            raise Unusable(f"${overrides[0]} overrides engine.options.migraphx behind its back; unset it")
    if provider == "cpu":
        return
    folder = _folder()
    try:  # for good, as ONNX Runtime does in a moment; and after its import, which a provider's constructors need
        ctypes.CDLL(str(folder / _SHARED), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / f"libonnxruntime_providers_{provider}.so"))
    except OSError as error:
        raise Unusable(
            f"{name} does not load: {error}; install what is missing, or take {provider} out of engine.providers"
        ) from error


def _folder() -> Path:
    return Path(onnxruntime.__file__).parent / "capi"


def _knows_key(key: str) -> bool:
    """Whether this build has the key among its texts: ONNX Runtime itself ignores a key that it does not know."""
    needle = key.encode() + b"\0"
    for path in (*_folder().glob("onnxruntime_pybind11_state*"), *_folder().glob("libonnxruntime.so*")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            if library.find(needle) >= 0:
                return True
    return False
