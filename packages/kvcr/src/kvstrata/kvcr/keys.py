# SPDX-License-Identifier: Apache-2.0
"""Keys of pages in KVCR: the full page hash and the namespace it is valid in.

SGLang publishes the first 64 bits of a page hash in its KV events and hints name pages by them, so
these bits lead the key. The rest decides: a page of another model, dtype, layout, page size, rank
or pool has another key and never matches.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from kvcr.types import BlockKey

_NAMESPACE_BYTES = 16


@dataclass(frozen=True)
class Namespace:
    """Everything besides the tokens that the bytes of a page depend on.

    Args:
        dtypes: of the values, also where SGLang stores them as plain bytes.
        page_slots: indices per page.
        component_bytes: size of each component of a page.
    """

    model: str
    dtypes: tuple[str, ...]
    layout: str
    page_slots: int
    component_bytes: tuple[int, ...]
    tp_rank: int
    tp_size: int
    cp_rank: int
    cp_size: int
    pool: str

    def digest(self) -> bytes:
        """16 bytes; equal only for equal namespaces."""
        text = "\0".join(f"{part!r}" for part in astuple(self))
        return hashlib.sha256(text.encode()).digest()[:_NAMESPACE_BYTES]


def page_keys(page_hashes: Iterable[str], namespace: bytes) -> list[BlockKey]:
    """Keys of pages from SGLang's hexadecimal page hashes."""
    keys: list[BlockKey] = [each + namespace for each in map(bytes.fromhex, page_hashes)]
    return keys


def page_of(key: bytes) -> str:
    """SGLang's hexadecimal page hash of a key."""
    return key[:-_NAMESPACE_BYTES].hex()


def namespace_of(key: bytes) -> bytes:
    """The namespace that a key was made in."""
    return key[-_NAMESPACE_BYTES:]


def event_hash(key: bytes) -> int:
    """The unsigned 64-bit hash by which hints and KV events name the page of a key."""
    return int.from_bytes(key[:8], "big")


class PageKeys:
    """Lets KVCR match its keys with the hashes in a hint."""

    def encode(self, framework_key: object) -> BlockKey:
        if not isinstance(framework_key, bytes):
            raise TypeError(f"page keys are bytes, got {type(framework_key).__name__}")
        return BlockKey(framework_key)

    def decode(self, key: BlockKey) -> int:
        return event_hash(key)
