# SPDX-License-Identifier: Apache-2.0
"""Equipment of the tests of exact-id and of the slices on it, which need kvstrata-exact-id."""

import pytest

pytest.register_assert_rewrite("kvstrata_host.leases.any_order")
