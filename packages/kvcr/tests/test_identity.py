# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import pytest

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.identity import model_identity

LARGE = 2 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "a.safetensors").write_bytes(b"small weights")
    (folder / "b.safetensors").write_bytes(bytes(LARGE))
    (folder / "README.md").write_text("not part of the model")
    return folder


def test_a_copy_under_another_path_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    (copy / "README.md").write_text("changed")
    assert model_identity(str(copy)) == model_identity(str(model))


@pytest.mark.parametrize(
    ("name", "offset"),
    [("config.json", 3), ("a.safetensors", 0), ("b.safetensors", 0), ("b.safetensors", LARGE - 1)],
)
def test_other_bytes_are_another_model(model: Path, name: str, offset: int) -> None:
    before = model_identity(str(model))
    contents = bytearray((model / name).read_bytes())
    contents[offset] ^= 1
    (model / name).write_bytes(contents)
    assert model_identity(str(model)) != before


def test_other_files_are_another_model(model: Path) -> None:
    before = model_identity(str(model))
    (model / "b.safetensors").rename(model / "c.safetensors")
    assert model_identity(str(model)) != before


def test_a_folder_without_weights_needs_a_model_id(model: Path) -> None:
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(ConfigError, match="Set model_id"):
        model_identity(str(model))
    with pytest.raises(ConfigError, match="Set model_id"):
        model_identity("organisation/model-on-a-hub")
