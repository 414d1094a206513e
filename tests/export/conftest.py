# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from .small import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
