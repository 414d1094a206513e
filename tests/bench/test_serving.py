# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import options
import pytest
from options import OptionError
from serving.case import Case, cases
from serving.outcome import Outcome, markdown, write_json
from serving.workload import Burst, Workload, send

from kvstrata.kvcr_tuning import TuningConfig
from kvstrata_host.server import Generation

WORKLOAD = Workload(groups=2, requests_per_group=3, prefix_tokens=64, end_tokens=8)
CASE = Case("kvcr, local", "kvcr", "own")


def answer(first_s: float, *, device: int = 0, storage: int = 64) -> Generation:
    return Generation(
        output_ids=(1, 2),
        output_logprobs=(),
        prompt_tokens=98,
        cached_tokens=device + storage,
        cached_device_tokens=device,
        cached_host_tokens=0,
        cached_storage_tokens=storage,
        time_to_first_token_s=first_s,
        latency_s=2 * first_s,
    )


def test_every_option_is_measured_alone_and_with_all_others_or_named_with_a_reason() -> None:
    alone, together = options.alone(), options.together()
    fields = {field.encode_name for field in msgspec.structs.fields(TuningConfig)}
    assert set(alone) == fields - set(options.ELSEWHERE)
    tuned = [dict(case.tuning) for case in cases()]
    default = TuningConfig()
    for name, tuning in alone.items():
        assert tuned.count(dict(tuning)) == 2
        assert getattr(TuningConfig.parse(tuning), name) != getattr(default, name)
    assert tuned.count(dict(together)) == 2
    switches = {name for name in alone if getattr(default, name) is False}
    assert switches <= set(together)
    assert set(options.performance()) == set(together) - options.DIAGNOSTICS


def test_an_option_that_is_no_switch_has_to_be_given_a_value() -> None:
    class Later(msgspec.Struct):
        switch: bool = False
        threads_of_later: int = 1

    described = msgspec.inspect.type_info(Later)
    assert isinstance(described, msgspec.inspect.StructType)
    switch, number = described.fields
    assert options.value_when_on(switch) is True
    with pytest.raises(OptionError, match=r"tuning\.threads_of_later is no switch"):
        options.value_when_on(number)


def test_the_requests_of_a_group_share_its_prefix_alone() -> None:
    prompts = WORKLOAD.prompts(WORKLOAD.prefixes("case"))
    assert len(prompts) == 6
    assert all(prompt[:64] == prefix and len(prompt) == 72 for prefix, prompt in prompts)
    assert len({prompt for _, prompt in prompts}) == 6
    assert len({prefix for prefix, _ in prompts}) == 2
    others = WORKLOAD.prefixes("other case")
    assert not set(others) & {prefix for prefix, _ in prompts}


def test_a_burst_asks_for_every_prompt_and_counts_all_tokens() -> None:
    asked: list[tuple[int, ...]] = []

    def ask(prefix: Sequence[int], prompt: Sequence[int]) -> Generation:
        assert tuple(prompt[: len(prefix)]) == tuple(prefix)
        asked.append(tuple(prompt))
        return answer(0.1)

    prompts = WORKLOAD.prompts(WORKLOAD.prefixes("case"))
    burst = send(ask, prompts)
    assert sorted(asked) == sorted(prompt for _, prompt in prompts)
    assert burst.restored_tokens == 6 * 64
    assert burst.tokens_per_second == pytest.approx(600 / burst.seconds)


def test_the_time_to_the_first_token_is_that_of_the_requests_which_need_the_prefix(
    tmp_path: Path,
) -> None:
    burst = Burst((answer(0.5), answer(0.3), answer(0.01, device=64, storage=0)), seconds=2.0)
    outcome = Outcome(CASE, (burst,))
    assert outcome.first_token_seconds == (0.5, 0.3)
    assert outcome.row() == ("kvcr, local", "400", "500", "150", "1")
    write_json(tmp_path / "serving.json", [outcome], {"cores": "2"})
    document = json.loads((tmp_path / "serving.json").read_text(encoding="utf-8"))
    assert document["cases"][0]["bursts"][0]["first_token_seconds"] == [0.5, 0.3, 0.01]
    assert "| kvcr, local | 400 | 500 | 150 | 1 |" in markdown([outcome], {"cores": "2"})


def test_a_case_that_failed_keeps_its_row_with_the_reason() -> None:
    failed = Outcome(CASE, (), "0 tokens came from storage, not 128")
    assert failed.row() == ("kvcr, local", "", "", "", "0 tokens came from storage, not 128")
