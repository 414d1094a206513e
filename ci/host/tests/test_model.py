# SPDX-License-Identifier: Apache-2.0
"""The models are reproducible, and their logits tell right KV from wrong."""

import dataclasses
import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kvstrata_host.model import DEMO, TINY, ModelSpec, build_model, main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"), TINY)


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """Of the next token at each position, [position, token]."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        scores: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return scores


def test_the_same_spec_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    again = build_model(tmp_path, TINY)
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (folder / weights).read_bytes()


def test_another_seed_gives_other_weights(folder: Path, tmp_path: Path) -> None:
    other = build_model(tmp_path, dataclasses.replace(TINY, seed=1))
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (folder / weights).read_bytes()


def test_building_leaves_torchs_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    build_model(tmp_path, TINY)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_next_token_is_far_from_a_coin_toss(folder: Path) -> None:
    ids = [(7 * i * i + 3 * i) % 250 + 3 for i in range(128)]
    chances = torch.log_softmax(logits(folder, ids), dim=-1)
    entropy = float(-(chances.exp() * chances).sum(-1).mean())
    uniform = math.log(chances.shape[-1])
    assert entropy < 0.75 * uniform


def test_one_other_token_early_on_changes_the_last_logits(folder: Path) -> None:
    ids = [(7 * i * i + 3 * i) % 250 + 3 for i in range(64)]
    changed = [ids[0] + 1, *ids[1:]]
    gap = (logits(folder, ids)[-1] - logits(folder, changed)[-1]).abs().max()
    assert float(gap) > 0.01


def test_the_tokenizer_gives_back_any_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Grüße, 世界! \n tab\t end"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_have_the_dtype_of_the_spec(dtype: str, tmp_path: Path) -> None:
    main([str(tmp_path), "--spec", "tiny", "--dtype", dtype, "--layers", "1"])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert str(model.dtype) == f"torch.{dtype}"
    assert model.config.num_hidden_layers == 1


def test_the_module_runs_as_a_command_and_explains_itself() -> None:
    command = [sys.executable, "-m", "kvstrata_host.model", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "OUT" in shown
    assert all(f"--{option}" in shown for option in ("spec", "layers", "kv-heads", "dtype", "seed"))


def test_kv_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert TINY.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert dataclasses.replace(TINY, dtype="bfloat16").kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_the_demo_model_holds_a_long_prompt() -> None:
    assert DEMO.context_tokens >= 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 65}, "hidden=65 must be a multiple of heads=4"),
        ({"kv_heads": 3}, "heads=4 must be a multiple of kv_heads=3"),
        ({"dtype": "float16"}, "dtype='float16' must be one of float32, bfloat16"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(changes: dict[str, object], message: str) -> None:
    fields = dataclasses.asdict(TINY) | changes
    with pytest.raises(ValueError, match=message):
        ModelSpec(**fields)
