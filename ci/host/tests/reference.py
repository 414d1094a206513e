# SPDX-License-Identifier: Apache-2.0
"""What the copies must do, one token and one layer at a time.

A pool is either the list of its layers' buffers, [token, ...], or one page-first tensor.
`Pool.row` says where a token of a layer lies in it, which is all that a layout means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvstrata_host.copies import COPIES


@dataclass(frozen=True)
class Shape:
    pages: int
    page_size: int
    layers: int
    item: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        item = "x".join(map(str, self.item))
        return f"{self.pages}p{self.page_size}-{self.layers}l-{item}-{self.dtype}"

    @property
    def tokens(self) -> int:
        return self.pages * self.page_size

    @property
    def item_bytes(self) -> int:
        return torch.empty(self.item, dtype=self.dtype).nbytes


@dataclass
class Pool:
    """One component (K, V, or the only one) of a device or host pool."""

    shape: Shape
    layout: str
    memory: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        shape, pages = self.shape, self.shape.pages
        dims = {
            "lf": (shape.tokens, *shape.item),
            "pf": (shape.tokens, shape.layers, *shape.item),
            "pfd": (pages, shape.layers, shape.page_size, *shape.item),
        }[self.layout]
        count = shape.layers if self.layout == "lf" else 1
        self.memory = [random_bytes(dims, shape.dtype) for _ in range(count)]

    @property
    def pointers(self) -> torch.Tensor:
        return torch.tensor([buffer.data_ptr() for buffer in self.memory], dtype=torch.uint64)

    def row(self, layer: int, token: int) -> torch.Tensor:
        if self.layout == "lf":
            return self.memory[layer][token]
        if self.layout == "pf":
            return self.memory[0][token, layer]
        page, slot = divmod(token, self.shape.page_size)
        return self.memory[0][page, layer, slot]

    def bytes(self) -> torch.Tensor:
        return torch.cat([buffer.reshape(-1).view(torch.uint8) for buffer in self.memory])


def random_bytes(dims: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Any bit pattern, NaN among them: copies move bytes."""
    size = torch.empty((), dtype=dtype).itemsize
    return torch.randint(0, 256, (*dims[:-1], dims[-1] * size), dtype=torch.uint8).view(dtype)


@dataclass(frozen=True)
class Copy:
    """A copy under test: the layouts on both sides and how SGLang calls it."""

    name: str
    source: str
    target: str
    one_layer: bool
    components: int

    def __str__(self) -> str:
        layers = "one" if self.one_layer else "all"
        return f"{self.name.removeprefix('transfer_kv_')}-{layers}-{self.components}"

    def run(
        self,
        sources: Sequence[Pool],
        targets: Sequence[Pool],
        indices: tuple[torch.Tensor, torch.Tensor],
        layer: int,
    ) -> None:
        shape = sources[0].shape
        common: dict[str, object] = {"src_indices": indices[0], "dst_indices": indices[1]}
        if "direct" in self.name:
            common |= {"page_size": shape.page_size}
        else:
            common |= {"item_size": shape.item_bytes}
            if not self.one_layer:
                common |= {"num_layers": shape.layers}
        if "pf" in (self.source, self.target):
            side = "src" if self.source == "pf" else "dst"
            common |= {f"{side}_layout_dim": shape.item_bytes * shape.layers}
        if self.one_layer and self.source != "lf":
            common |= {"layer_id": layer}
        COPIES[self.name](**self._buffers(sources, targets, layer), **common)

    def _buffers(
        self, sources: Sequence[Pool], targets: Sequence[Pool], layer: int
    ) -> dict[str, object]:
        if "direct" in self.name:
            source, target = ("src_ptrs", "dst_ptrs") if "pf" in self.name else _LAYERS
            return {
                source: [buffer for pool in sources for buffer in self._given(pool, layer)],
                target: [buffer for pool in targets for buffer in self._given(pool, layer)],
            }
        named: dict[str, object] = {}
        for side, pools in (("src", sources), ("dst", targets)):
            for part, pool in zip(("_k", "_v") if len(pools) == 2 else ("",), pools, strict=True):
                table = pool.layout == "lf" and not self.one_layer
                named[f"{side}{part}{'_layers' if table else ''}"] = (
                    pool.pointers if table else self._given(pool, layer)[0]
                )
        return named

    def _given(self, pool: Pool, layer: int) -> list[torch.Tensor]:
        if pool.layout == "lf" and self.one_layer:
            return [pool.memory[layer]]
        return pool.memory

    def expect(
        self,
        sources: Sequence[Pool],
        targets: Sequence[Pool],
        indices: tuple[torch.Tensor, torch.Tensor],
        layer: int,
    ) -> None:
        """The same on `targets`, one token of one layer after the other."""
        shape = sources[0].shape
        for source, target in zip(sources, targets, strict=True):
            for each in [layer] if self.one_layer else range(shape.layers):
                for src, dst in zip(indices[0].tolist(), indices[1].tolist(), strict=True):
                    target.row(each, dst).copy_(source.row(each, src))


_LAYERS = ("src_layers", "dst_layers")
COPIES_UNDER_TEST = (
    Copy("transfer_kv_per_layer", "lf", "lf", one_layer=True, components=2),
    Copy("transfer_kv_per_layer_mla", "lf", "lf", one_layer=True, components=1),
    Copy("transfer_kv_all_layer", "lf", "lf", one_layer=False, components=2),
    Copy("transfer_kv_all_layer_mla", "lf", "lf", one_layer=False, components=1),
    Copy("transfer_kv_per_layer_pf_lf", "pf", "lf", one_layer=True, components=2),
    Copy("transfer_kv_per_layer_mla_pf_lf", "pf", "lf", one_layer=True, components=1),
    Copy("transfer_kv_all_layer_lf_pf", "lf", "pf", one_layer=False, components=2),
    Copy("transfer_kv_all_layer_mla_lf_pf", "lf", "pf", one_layer=False, components=1),
    Copy("transfer_kv_direct", "lf", "lf", one_layer=True, components=2),
    Copy("transfer_kv_direct", "lf", "lf", one_layer=False, components=2),
    Copy("transfer_kv_direct", "lf", "lf", one_layer=False, components=1),
    Copy("transfer_kv_per_layer_direct_pf_lf", "pfd", "lf", one_layer=True, components=2),
    Copy("transfer_kv_per_layer_direct_pf_lf", "pfd", "lf", one_layer=True, components=1),
    Copy("transfer_kv_all_layer_direct_lf_pf", "lf", "pfd", one_layer=False, components=2),
    Copy("transfer_kv_all_layer_direct_lf_pf", "lf", "pfd", one_layer=False, components=1),
)
