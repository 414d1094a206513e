# SPDX-License-Identifier: Apache-2.0
"""Entry point for SGLang: offers the options to the backend, and changes nothing else."""

from collections.abc import Mapping

from kvstrata.kvcr.extension import Extension, Surroundings, register


def load() -> None:
    """Offer the options under ``tuning`` in the extra config of ``kvcr``."""
    register(_tuned)


def _tuned(
    options: Mapping[str, object], surroundings: Surroundings, inner: Extension
) -> Extension:
    # Imports SGLang and KVCR, which may be missing where plugins are loaded.
    from .options import tuned

    return tuned(options, surroundings, inner)
