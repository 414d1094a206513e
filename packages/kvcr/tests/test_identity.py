# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.identity import Weights, model_identity, value_types
from kvstrata_host.hybrid import make_states, make_v4
from kvstrata_host.rank import PAGE_TOKENS, make_pools

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


@pytest.fixture
def draft(model: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(model, tmp_path / "draft")
    (folder / "a.safetensors").write_bytes(b"draft weights")
    return folder


def packed_pools() -> tuple[Any, Any]:
    """SGLang's host pool of a model, and the one that holds the layers of a draft as well."""
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device, plain = make_pools("mla", "page_first")
    draft = make_pools("mla", "page_first")[0]
    return plain, MLATokenToKVPoolHost(
        device, 2.0, 0, PAGE_TOKENS, "page_first", mtp_draft_device_pools=(draft,)
    )


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_pages_of_a_draft_belong_to_both_models_and_others_to_one(model: Path, draft: Path) -> None:
    alone = Weights.of(str(model), None, "")
    both = Weights.of(str(model), str(draft), "")
    plain, packed = packed_pools()
    assert both.behind("kv", plain) == alone.behind("kv", plain) == alone.behind("draft", plain)
    assert both.behind("kv", plain) != both.behind("draft", plain)
    for name, pool in (("kv", packed), ("draft_swa", plain)):
        assert both.behind(name, pool) == both.behind("draft", plain)
    (draft / "a.safetensors").write_bytes(b"other weights")
    other = Weights.of(str(model), str(draft), "")
    assert other.behind("draft", plain) != both.behind("draft", plain)
    assert other.behind("kv", plain) == both.behind("kv", plain)
    named = Weights.of("nowhere", "nowhere either", "mine")
    assert named.behind("kv", packed) == named.behind("draft", plain) == "mine"


def test_a_draft_in_the_models_own_files_is_no_other_model(model: Path) -> None:
    assert Weights.of(str(model), str(model), "") == Weights.of(str(model), None, "")


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_types_of_values_are_those_before_they_become_bytes() -> None:
    assert value_types(make_pools("mla", "page_first")[1]) == ("torch.bfloat16",)
    states = make_states("page_first", torch.float16)
    assert value_types(states) == ("torch.bfloat16", "torch.float16")
    compressed = make_v4("page_first")["deepseek_v4_c4_state"]
    assert value_types(compressed) == ("torch.uint8", "torch.float32")
