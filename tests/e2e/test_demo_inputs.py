# SPDX-License-Identifier: Apache-2.0
"""What the demo sends: prompts and hints, and what it refuses on its command line."""

import json

import pytest
from demo import prompt
from demo.__main__ import main
from demo.hint import fetch_hint


def test_a_prompt_follows_from_its_name_and_the_seed_alone() -> None:
    drawn = prompt.draw("main", count=64, seed=1)
    assert drawn == prompt.draw("main", count=64, seed=1)
    assert drawn[:16] != prompt.draw("other", count=64, seed=1)[:16]
    assert drawn[:16] != prompt.draw("main", count=64, seed=2)[:16]
    assert all(3 <= token < 259 for token in drawn)


def test_a_hint_names_its_source_and_keeps_all_64_bits_of_a_hash() -> None:
    message = json.loads(json.dumps(fetch_hint("tcp://127.0.0.1:7001", [2**64 - 1, 5])))
    (action,) = message["actions"]
    assert (message["protocol_version"], action["action_type"], action["action_version"]) == (
        "0.1",
        "kv.fetch",
        "1.0",
    )
    assert action["payload"] == {
        "source_control_endpoint": "tcp://127.0.0.1:7001",
        "block_hashes": [2**64 - 1, 5],
        "mode": "copy",
    }


@pytest.mark.parametrize("count", ["100", "2047", "4096", "many"])
def test_a_prompt_that_cannot_be_played_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--prompt-tokens", count])
    assert ended.value.code == 2
    assert "--prompt-tokens" in capsys.readouterr().err
