# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

# The helpers beside the tests are imported by name, also where the tests were copied to.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "integration: runs real upstream components; takes seconds")
