# SPDX-License-Identifier: Apache-2.0
"""What would be managed for a model and server arguments, and how large the pools would be.

Sizes are SGLang's for CUDA, worked out without SGLang, torch or a GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .errors import SetupError
from .gating import Circumstances
from .geometry import PoolGeometry
from .ownership import C4, C128, INDEXER, SWA, Claim, decide, layers_by_pool

PAGE_TOKENS = 256
"""SGLang takes no other page size for DeepSeek-V4."""

_QUANTIZED_BLOCK = 64
_ROW_ALIGNMENT_BYTES = 576


@dataclass(frozen=True)
class ModelShape:
    """What of a DeepSeek-V4 model decides about its pools."""

    compress_ratios: tuple[int, ...]
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    index_head_dim: int
    context_tokens: int

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> "ModelShape":
        """Reads the fields of a config.json; SetupError names the one that is missing or wrong."""
        ratios = config.get("compress_ratios")
        if not isinstance(ratios, list) or not {*ratios} <= {0, 4, 128}:
            raise SetupError(
                "compress_ratios",
                ratios,
                "a list of 0, 4 and 128, one for each layer",
                "Give the config.json of a DeepSeek-V4 model.",
            )
        layer_count = _number(config, "num_hidden_layers", default=len(ratios))
        return cls(
            compress_ratios=tuple(ratios[:layer_count]),
            qk_nope_head_dim=_number(config, "qk_nope_head_dim", default=448),
            qk_rope_head_dim=_number(config, "qk_rope_head_dim", default=64),
            index_head_dim=_number(config, "index_head_dim", default=128),
            context_tokens=_number(config, "max_position_embeddings", default=65_536),
        )


@dataclass(frozen=True)
class Capacity:
    """How many tokens the pools are for, and how they are stored."""

    full_tokens: int
    swa_ratio: float
    vmm_page_bytes: int
    uniform_fp8: bool = False
    fp4_indexer: bool = False

    @property
    def full_pages(self) -> int:
        return self.full_tokens // PAGE_TOKENS

    @property
    def swa_pages(self) -> int:
        return int(self.full_pages * PAGE_TOKENS * self.swa_ratio) // PAGE_TOKENS


@dataclass(frozen=True)
class PlannedPool:
    """One pool. Sizes are None where a pool has no pages."""

    pool: str
    is_managed: bool
    why: str
    layer_count: int
    page_count: int | None = None
    page_bytes: int | None = None
    straddling_share: float | None = None
    native_bytes: int | None = None
    virtual_bytes: int | None = None
    least_bytes: int | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def plan(
    shape: ModelShape, capacity: Capacity, seen: Circumstances, claimed: Mapping[str, Claim]
) -> Sequence[PlannedPool]:
    """Every pool of the model, in a fixed order."""
    layers = layers_by_pool(shape.compress_ratios)
    geometries = _geometries(shape, capacity, layers)
    planned: list[PlannedPool] = []
    for owner in decide(seen, layers, claimed):
        pool = PlannedPool(owner.pool, owner.is_managed, owner.why, layers[owner.pool])
        geometry = geometries.get(owner.pool)
        if geometry is not None:
            pool = PlannedPool(
                pool.pool,
                pool.is_managed,
                pool.why,
                pool.layer_count,
                page_count=geometry.page_count,
                page_bytes=geometry.page_bytes,
                straddling_share=geometry.straddling_share,
                native_bytes=geometry.native_bytes,
                virtual_bytes=geometry.virtual_bytes if pool.is_managed else None,
                least_bytes=geometry.floor_bytes if pool.is_managed else geometry.native_bytes,
            )
        planned.append(pool)
    return planned


def latent_page_bytes(shape: ModelShape, tokens: int, *, uniform_fp8: bool) -> int:
    """Bytes of one page of `tokens` latents in one layer, as SGLang's kernels lay it out."""
    if uniform_fp8:
        return tokens * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    scales = shape.qk_nope_head_dim // _QUANTIZED_BLOCK + 1
    token_bytes = shape.qk_nope_head_dim + 2 * shape.qk_rope_head_dim + scales
    return -(-tokens * token_bytes // _ROW_ALIGNMENT_BYTES) * _ROW_ALIGNMENT_BYTES


def indexer_page_bytes(shape: ModelShape, tokens: int, *, fp4: bool) -> int:
    """Bytes of one page of `tokens` keys of the packed indexer in one layer."""
    size = shape.index_head_dim
    return tokens * (size // 2 + size // 32 if fp4 else size + size // 128 * 4)


def _geometries(
    shape: ModelShape, capacity: Capacity, layers: Mapping[str, int]
) -> Mapping[str, PoolGeometry]:
    uniform = capacity.uniform_fp8
    page_bytes = {
        SWA: latent_page_bytes(shape, PAGE_TOKENS, uniform_fp8=uniform),
        C4: latent_page_bytes(shape, PAGE_TOKENS // 4, uniform_fp8=uniform),
        C128: latent_page_bytes(shape, PAGE_TOKENS // 128, uniform_fp8=uniform),
        INDEXER: indexer_page_bytes(shape, PAGE_TOKENS // 4, fp4=capacity.fp4_indexer),
    }
    return {
        pool: PoolGeometry(
            page_count=capacity.swa_pages if pool == SWA else capacity.full_pages,
            page_bytes=size,
            layer_count=layers[pool],
            vmm_page_bytes=capacity.vmm_page_bytes,
        )
        for pool, size in page_bytes.items()
        if layers[pool]
    }


def _number(config: Mapping[str, object], name: str, *, default: int) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise SetupError(name, value, "a positive integer", "Correct the config.json.")
    return value
