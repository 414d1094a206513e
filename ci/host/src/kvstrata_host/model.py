# SPDX-License-Identifier: Apache-2.0
"""Small Llama models with real random weights, built on the spot.

Weights that are all alike give uniform logits, and uniform logits hide wrong KV. These weights are
drawn wide enough that a next token is far from a coin toss, from a fixed seed.

    python -m kvstrata_host.model OUT --spec tiny
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

Dtype = Literal["float32", "bfloat16"]

_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
_VOCABULARY = 320  # 256 bytes and the special tokens, rounded up to a multiple of 64
_GAIN = 2.0  # standard deviation of a projection of a normalised hidden state


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """The shape of a model; sizes are numbers of elements, `context_tokens` its longest input."""

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    context_tokens: int
    dtype: Dtype = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(get_args(Dtype))}")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V over all layers."""
        element_bytes = 4 if self.dtype == "float32" else 2
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * element_bytes


TINY = ModelSpec("tiny", layers=2, hidden=64, mlp=128, heads=4, kv_heads=2, context_tokens=2048)
DEMO = ModelSpec("demo", layers=8, hidden=768, mlp=2048, heads=12, kv_heads=6, context_tokens=4096)
SPECS = {spec.name: spec for spec in (TINY, DEMO)}


def build_model(path: Path, spec: ModelSpec) -> Path:
    """Write weights, configuration and a byte-level tokenizer to the folder and return it.

    The same spec gives the same bytes of weights.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=spec.hidden,
        intermediate_size=spec.mlp,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.hidden // spec.heads,
        max_position_embeddings=spec.context_tokens,
        bos_token_id=_SPECIAL_TOKENS.index("<s>"),
        eos_token_id=_SPECIAL_TOKENS.index("</s>"),
        initializer_range=_GAIN / spec.hidden**0.5,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(spec.seed)
        model = LlamaForCausalLM(config)
    path.mkdir(parents=True, exist_ok=True)
    model.to(getattr(torch, spec.dtype)).save_pretrained(path)
    _save_tokenizer(path)
    return path


def _save_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m kvstrata_host.model", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--spec", choices=sorted(SPECS), default="tiny", help="where to start from")
    for field in ("layers", "hidden", "mlp", "heads", "kv_heads", "context_tokens", "seed"):
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, dest=field)
    parser.add_argument("--dtype", choices=get_args(Dtype))
    values = vars(parser.parse_args(arguments))
    out, base = values.pop("out"), SPECS[values.pop("spec")]
    changes = {field: value for field, value in values.items() if value is not None}
    spec = dataclasses.replace(base, **changes)
    print(f"{build_model(out, spec)}: {spec}")


if __name__ == "__main__":
    main()
