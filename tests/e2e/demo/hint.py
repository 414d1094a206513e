# SPDX-License-Identifier: Apache-2.0
"""The `kv.fetch` 1.0 hint that names a replica as the source of a prompt's pages."""

import json
from collections.abc import Iterable, Sequence


def page_hashes(tokens: Sequence[int], *, page_size_tokens: int) -> tuple[int, ...]:
    """Unsigned first 64 bits of SGLang's hash of each whole page.

    SGLang compiles its page hash at first use, which takes a moment.
    """
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    whole = len(tokens) - len(tokens) % page_size_tokens
    hashes = get_storage_hash_str(list(tokens[:whole]), None, page_size=page_size_tokens)
    return tuple(int(each[:16], 16) for each in hashes)


def fetch_hint(source: str, hashes: Iterable[int]) -> str:
    """The hint as the JSON text that a request carries; `source` is `tcp://host:port`."""
    payload = {
        "source_control_endpoint": source,
        "block_hashes": list(hashes),
        "mode": "copy",
    }
    action = {
        "action_id": "restore-prompt",
        "action_type": "kv.fetch",
        "action_version": "1.0",
        "payload": payload,
    }
    return json.dumps({"protocol_version": "0.1", "message_id": "demo", "actions": [action]})
