# SPDX-License-Identifier: Apache-2.0
"""The tests of an exported tree, with the slice under its upstream's names and nothing of ours."""

from __future__ import annotations

import msgspec


class Applied(msgspec.Struct, frozen=True):
    """A tree that is ready to run.

    Args:
        tree: its folder.
        path: the folder of its importable packages.
        tests: the slice's exported tests, files in the tree.
        checks: folder of the slice's other tests, under the upstream's names; empty if none.
        upstream_tests: the upstream's own tests that are in the tree.
    """

    tree: str
    path: str
    tests: tuple[str, ...]
    checks: str
    upstream_tests: tuple[str, ...]
