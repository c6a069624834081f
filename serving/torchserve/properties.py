"""A ``config.properties`` for TorchServe that is safe as it stands, and the file of metrics that it names.

Loopback, or TorchServe's tokens; no registering of models while it runs; archives from the model store and from nowhere
else; no packages installed by archives; no settings from the environment. docs/torchserve.md says why.
"""

from __future__ import annotations

import ipaddress
import re
from importlib.util import find_spec
from pathlib import Path

import yaml

from serving.torchserve.metrics import document

PROPERTIES = "config.properties"
METRICS = "metrics.yaml"
LOOPBACK = "127.0.0.1"
FORM_BYTES = 1 << 16  # what a form may take beside the file in it
RESPONSE_BYTES = 64 << 20


class NoTorchServe(Exception):
    """TorchServe is not installed here, so that its own metrics are not known."""


def properties(
    store: Path, request_bytes: int, host: str = LOOPBACK, port: int = 8080, metrics_host: str = LOOPBACK
) -> dict[str, str]:
    """What the file says, for a model store at this place, bodies of up to ``request_bytes``, and three ports from
    ``port`` on: inference on ``host``, management on loopback always, metrics, which TorchServe asks no token for, on
    ``metrics_host``."""
    store = store.resolve()
    return {
        "inference_address": f"http://{host}:{port}",
        "management_address": f"http://{LOOPBACK}:{port + 1}",
        "metrics_address": f"http://{metrics_host}:{port + 2}",
        "disable_token_authorization": str(is_loopback(host)).lower(),
        "enable_model_api": "false",
        "allowed_urls": f"file://{re.escape(str(store))}/.*",
        "use_env_allowed_urls": "false",
        "enable_envvars_config": "false",
        "install_py_dep_per_model": "false",
        "model_store": str(store),
        "load_models": "all",
        "metrics_mode": "prometheus",
        "metrics_config": str(store / METRICS),
        "decode_input_request": "false",
        "max_request_size": str(request_bytes + FORM_BYTES),
        "max_response_size": str(RESPONSE_BYTES),
    }


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address; a name is taken to be reached from anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def render(values: dict[str, str]) -> str:
    """The text of a properties file (java.util.Properties: Latin-1, backslash escapes)."""
    lines = ["# Made by preheat archive; what each line is for: docs/torchserve.md"]
    return "\n".join([*lines, *(f"{key}={_escaped(value)}" for key, value in values.items())]) + "\n"


def parse(text: str) -> dict[str, str]:
    """The keys of a properties file with their raw values, enough to look a number up."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def metrics_text() -> str:
    """TorchServe's own metrics, as the installed version lists them, and Preheat's; raises NoTorchServe."""
    found = find_spec("ts")
    if found is None or not found.submodule_search_locations:
        raise NoTorchServe("TorchServe is not installed: pip install 'preheat[torchserve]'")
    path = Path(next(iter(found.submodule_search_locations))) / "configs" / METRICS
    standard = yaml.safe_load(path.read_text(encoding="utf-8"))
    return yaml.safe_dump(document(standard), sort_keys=False)


def _escaped(value: str) -> str:
    return "".join(
        "\\\\" if character == "\\" else character if character.isascii() else _unicode(character)
        for character in value
    )


def _unicode(character: str) -> str:
    words = character.encode("utf-16-be")
    return "".join(f"\\u{words[at]:02x}{words[at + 1]:02x}" for at in range(0, len(words), 2))
