# SPDX-License-Identifier: Apache-2.0
"""The options of kvcr-tuning, as many as the demo's model allows."""

from pathlib import Path

from kvstrata_host.spec import Json

_NEEDS_REPLICATED_KV = "shared_mla"
_NEEDS_THE_KERNEL = "huge_pages"
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_READ_BATCH_PAGES = 32


def all_options() -> dict[str, Json]:
    """Every switch on, and reads cut differently than by SGLang; needs kvstrata-kvcr-tuning.

    Without what only a model with replicated KV allows: the demo's Llama has KV heads of its own
    on each rank. And without huge pages where the kernel gives none.
    """
    from kvstrata.kvcr_tuning import TuningConfig

    off = TuningConfig()
    left_out = {_NEEDS_REPLICATED_KV}
    if not _HUGE_PAGES.is_file() or "[never]" in _HUGE_PAGES.read_text(encoding="utf-8"):
        left_out.add(_NEEDS_THE_KERNEL)
    switches = (name for name in off.__struct_fields__ if getattr(off, name) is False)
    return {
        **{name: True for name in switches if name not in left_out},
        "read_batch_pages": _READ_BATCH_PAGES,
    }
