# SPDX-License-Identifier: Apache-2.0
"""The pages of one call, over one pool or several, as KVCR blocks."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from kvcr.types import BlockKey, MemoryRef

from .keys import page_keys
from .pools import HostPools


@dataclass(frozen=True)
class PoolPages:
    """The pages of one pool that a call names, and where they are on the host.

    Args:
        hashes: SGLang's page hashes.
        slots: slot indices of the pages, page by page; shape [pages * slots per page].
    """

    pool: str
    hashes: Sequence[str]
    slots: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """What one KVCR operation moves, and in which order the caller named it.

    Args:
        blocks: host places by key.
        keys: the keys of each pool in the call's order; None for a page without bytes.
        prefix: SGLang's hashes of the pages before the first one, where it names them.
    """

    blocks: Mapping[BlockKey, list[MemoryRef]]
    keys: Mapping[str, Sequence[BlockKey | None]]
    prefix: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        wanted: Sequence[PoolPages],
        pools: HostPools,
        namespaces: Mapping[str, bytes],
        agent: str,
        prefix: Sequence[str] = (),
    ) -> "Batch":
        """The blocks of a call; raises ValueError unless it names whole and different pages."""
        blocks: dict[BlockKey, list[MemoryRef]] = {}
        keys: dict[str, Sequence[BlockKey | None]] = {}
        for part in wanted:
            pages = pools.named(part.pool)
            places = pages.page_indices(part.slots)
            if len(places) != len(part.hashes):
                raise ValueError(f"{len(part.hashes)} {part.pool} keys for {len(places)} pages")
            if part.pool in keys:
                raise ValueError(f"the {part.pool} pool is named twice")
            if pages.is_logical:
                keys[part.pool] = [None] * len(places)
                continue
            own = page_keys(part.hashes, namespaces[part.pool])
            if len(set(own)) != len(own) or len(set(places)) != len(places):
                raise ValueError(f"{part.pool} pages are named twice")
            keys[part.pool] = own
            references = [pages.references(agent, place) for place in places]
            blocks.update(zip(own, references, strict=True))
        return cls(blocks, keys, prefix)

    def only(self, keys: Iterable[BlockKey]) -> dict[BlockKey, list[MemoryRef]]:
        """The blocks of some of the keys, in their order."""
        return {key: self.blocks[key] for key in keys}

    def results(self, done: Container[BlockKey]) -> dict[str, list[bool]]:
        """Per pool, whether each page is done; one without bytes always is."""
        return {
            pool: [key is None or key in done for key in keys] for pool, keys in self.keys.items()
        }


def by_layout(
    blocks: Mapping[BlockKey, list[MemoryRef]],
) -> dict[tuple[str, ...], dict[BlockKey, list[MemoryRef]]]:
    """The blocks apart by the labels of their components, which one call of KVCR has in common."""
    parts: dict[tuple[str, ...], dict[BlockKey, list[MemoryRef]]] = {}
    for key, references in blocks.items():
        parts.setdefault(tuple([each.label for each in references]), {})[key] = references
    return parts
