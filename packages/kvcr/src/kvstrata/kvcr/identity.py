# SPDX-License-Identifier: Apache-2.0
"""Identity of weights and values: what makes two replicas' pages interchangeable.

Replicas may keep the same weights under different paths and names, and different weights under
the same name, so the identity is taken from the files.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError
from .layout import HostPool

_SAMPLE_BYTES = 64 << 10
_SAMPLES = 8
_PATTERNS = ("config.json", "*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True)
class Weights:
    """Identities of the model and, if there is one, of its speculative draft."""

    model: str
    draft: str = ""

    @classmethod
    def of(cls, model_path: str, draft_path: str | None, model_id: str) -> "Weights":
        """The identities of two folders; a ``model_id`` stands for both.

        Raises ConfigError like `model_identity`.
        """
        if model_id:
            return cls(model_id)
        draft = model_identity(draft_path) if draft_path and draft_path != model_path else ""
        return cls(model_identity(model_path), draft)

    def behind(self, pool_name: str, pool: HostPool) -> str:
        """The identity of everything that computed a pool's pages.

        SGLang keeps a draft's KV in pools of its own, or packs its layers into those of the model.
        """
        layers = getattr(pool, "layer_num", 0)
        packed = layers > getattr(pool, "target_layer_num", layers)
        from_draft = packed or pool_name.startswith("draft")
        return f"{self.model}+{self.draft}" if self.draft and from_draft else self.model


def value_types(pool: HostPool) -> tuple[str, ...]:
    """Types of the values in a pool's pages, also where SGLang stores them as plain bytes."""
    device_pool = getattr(pool, "device_pool", None)
    buffers = getattr(pool, "device_buffers", None) or ()
    states = getattr(pool, "state_pools", None) or ()
    found = [
        pool.dtype,
        getattr(device_pool, "dtype", None),
        getattr(pool, "temporal_dtype", None),
        *(buffer.dtype for buffer in buffers),
        *(state.kv_score_buffer.kv_score.dtype for state in states),
    ]
    return tuple(dict.fromkeys(str(dtype) for dtype in found if dtype is not None))


def model_identity(model_path: str) -> str:
    """Hexadecimal identity of the model in a folder.

    Covers the model's configuration whole, and of each weight file the name, the size and
    samples spread over the file: enough to tell weights apart without reading all of them.

    Raises ConfigError where there is no such folder or no weights in it.
    """
    folder = Path(model_path)
    files = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)})
    if not any(path.name != "config.json" for path in files):
        raise ConfigError(
            "model_id",
            "",
            "a name of the weights, equal on all replicas that may share pages",
            f"Set model_id: no weight files were found in {model_path!r} to derive it from.",
        )
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(stream.read())
                continue
            for i in range(_SAMPLES):
                stream.seek(i * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()
