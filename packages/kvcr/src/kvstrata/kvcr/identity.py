# SPDX-License-Identifier: Apache-2.0
"""Model identity: what makes two replicas' pages interchangeable.

Replicas may keep the same weights under different paths and names, and different weights under
the same name, so the identity is taken from the files.
"""

import hashlib
from pathlib import Path

from .errors import ConfigError

_SAMPLE_BYTES = 64 << 10
_SAMPLES = 8
_PATTERNS = ("config.json", "*.safetensors", "*.bin", "*.pt", "*.gguf")


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
