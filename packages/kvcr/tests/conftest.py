# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

# The helpers beside the tests are imported by name here and in the processes that tests start.
sys.path.insert(0, str(Path(__file__).parent))
