# SPDX-License-Identifier: Apache-2.0
"""What `plan` tells an operator about the pools of a model, without SGLang."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvstrata.exact_id.__main__ import main


def write_config(folder: Path, compression_ratios: list[int]) -> Path:
    """The config of a model with these layers."""
    file = folder / "config.json"
    file.write_text(json.dumps({"compress_ratios": compression_ratios}), encoding="utf-8")
    return file


def planned(
    capsys: pytest.CaptureFixture[str], config: Path, *arguments: str
) -> dict[str, dict[str, Any]]:
    """Each pool by its name, for SGLang's `arguments`."""
    assert main(["plan", "--model-config", str(config), "--json", *arguments]) == 0
    return {pool["pool"]: pool for pool in json.loads(capsys.readouterr().out)["pools"]}
