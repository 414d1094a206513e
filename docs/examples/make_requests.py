# SPDX-License-Identifier: Apache-2.0
"""Writes plain.json and hinted.json: one request without and one with a hint to SOURCE."""

import json
from pathlib import Path

from sglang.srt.mem_cache.utils import get_storage_hash_str

PAGE_SIZE = 64
SOURCE = "tcp://127.0.0.1:28500"

tokens = [3 + 7 * i % 250 for i in range(1024)]
hashes = get_storage_hash_str(tokens, None, page_size=PAGE_SIZE)
hint = {
    "protocol_version": "0.1",
    "message_id": "by-hand",
    "actions": [
        {
            "action_id": "1",
            "action_type": "kv.fetch",
            "action_version": "1.0",
            "payload": {
                "source_control_endpoint": SOURCE,
                "block_hashes": [int(page[:16], 16) for page in hashes],
                "mode": "copy",
            },
        }
    ],
}
request = {"input_ids": tokens, "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
Path("plain.json").write_text(json.dumps(request))
request["sampling_params"]["custom_params"] = {"kv_hints": json.dumps(hint)}
Path("hinted.json").write_text(json.dumps(request))
