# SPDX-License-Identifier: Apache-2.0
"""Ranks of a tensor-parallel group, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

MEMBER = """
import sys
from pathlib import Path
from kvstrata_host.rank import Rank, bring_up

number, size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
bring_up(number, size, rendezvous)
rank = Rank("mha", "page_first_direct", "direct", storage_backend="file")
rank.back_up(list(range(12)))
completed, _ = rank.restore(list(range(12 if number else 8)))
place = rank.controller.storage_config
print("place", place.tp_rank, place.tp_size, completed)
rank.close()
"""


def test_ranks_know_their_place_and_restore_what_all_of_them_hold(tmp_path: Path) -> None:
    """Rank 0 asks for two pages and rank 1 for three, so that both end with two."""
    store = {**os.environ, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path / "store")}
    members = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", MEMBER, str(number), "2", tmp_path / "group"],
            env=store,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [member.communicate(timeout=120)[0].splitlines()[-1] for member in members]
    assert said == ["place 0 2 8", "place 1 2 8"]
