# SPDX-License-Identifier: Apache-2.0
"""The options of kvcr-tuning, as many as the demo's model allows."""

from kvstrata_host.spec import Json

_NEEDS_REPLICATED_KV = {"shared_mla"}
_READ_BATCH_PAGES = 32


def all_options() -> dict[str, Json]:
    """Every switch on, and reads cut differently than by SGLang; needs kvstrata-kvcr-tuning.

    Without what only a model with replicated KV allows: the demo's Llama has KV heads of its own
    on each rank.
    """
    from kvstrata.kvcr_tuning import TuningConfig

    off = TuningConfig()
    switches = (name for name in off.__struct_fields__ if getattr(off, name) is False)
    return {
        **{name: True for name in switches if name not in _NEEDS_REPLICATED_KV},
        "read_batch_pages": _READ_BATCH_PAGES,
    }
