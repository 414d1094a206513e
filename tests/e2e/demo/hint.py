# SPDX-License-Identifier: Apache-2.0
"""The `kv.fetch` 1.0 hint that names a replica as the source of a prompt's pages."""

import functools
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kvstrata_host.spec import Json

Hint: TypeAlias = Mapping[str, Json]


def page_hashes(tokens: Sequence[int], *, page_size_tokens: int) -> tuple[int, ...]:
    """Unsigned first 64 bits of SGLang's hash of each whole page.

    SGLang compiles its page hash at first use, which takes a moment.
    """
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    whole = len(tokens) - len(tokens) % page_size_tokens
    hashes = get_storage_hash_str(list(tokens[:whole]), None, page_size=page_size_tokens)
    return tuple(int(each[:16], 16) for each in hashes)


@functools.cache
def has_native_field() -> bool:
    """Whether a request of this SGLang has a field for hints; else one travels as JSON text."""
    return importlib.util.find_spec("sglang.srt.managers.kv_hints") is not None


def fetch_hint(source: str, hashes: Iterable[int]) -> Hint:
    """The hint that a request carries; `source` is `tcp://host:port`, rank 0's."""
    payload: dict[str, Json] = {
        "source_control_endpoint": source,
        "block_hashes": list(hashes),
        "mode": "copy",
    }
    action: dict[str, Json] = {
        "action_id": "restore-prompt",
        "action_type": "kv.fetch",
        "action_version": "1.0",
        "payload": payload,
    }
    return {"protocol_version": "0.1", "message_id": "demo", "actions": [action]}
