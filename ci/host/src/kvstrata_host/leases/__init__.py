# SPDX-License-Identifier: Apache-2.0
"""Equipment of the tests of exact-id and of the slices on it, which need kvstrata-exact-id."""

import pytest

_CHECKING = ("any_order", "frees", "plan", "serving", "switch")

pytest.register_assert_rewrite(*(f"{__name__}.{each}" for each in _CHECKING))
