# SPDX-License-Identifier: Apache-2.0
"""Every slice of both stacks in one environment: what each changes, and that nothing else does."""

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from demo.comparison import compare
from variants import (
    ABSENT,
    DAMAGED,
    ENVIRONMENTS,
    OFF,
    ON,
    PAGE_TOKENS,
    PROMPT,
    Answers,
    ask,
    copy_environment,
    server_specs,
)

from kvstrata_host.server import Generation
from kvstrata_host.spec import ServerSpec
from stackkit import Slice, load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STACKS = load(Path(__file__).parents[2] / "stacks")
SLICES = STACKS.combinations["combined"].slices
HOOKING = {point.dist.name for point in entry_points(group="kvstrata.seams") if point.dist}


def needs_kvcached(entry: Slice) -> bool:
    return "kvcached" in STACKS.pinned(entry.id)


ON_KVCACHED = {entry.distribution for entry in SLICES if needs_kvcached(entry)}
OTHERS = {entry.distribution for entry in SLICES} - ON_KVCACHED

LOADED = """\
import json, warnings
warnings.simplefilter("ignore")
from importlib.metadata import entry_points
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from kvstrata.seams import SeamError, apply, verify

def in_place(seams):
    try:
        verify(seams)
    except SeamError:
        return False
    return True

points = entry_points(group="kvstrata.seams")
found = {
    "hooking": sorted({point.dist.name for point in points if in_place(point.load())}),
    "pool": MHATokenToKVPool.__name__,
}
apply(*(point.load() for point in points))
print(json.dumps({**found, "together": sorted({point.dist.name for point in points})}))
"""
INSTALLED = """\
import json
from importlib.metadata import distributions
print(json.dumps({"names": sorted({each.metadata["Name"] for each in distributions()})}))
"""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ServerSpec]:
    without = copy_environment(
        tmp_path_factory.mktemp("without-kvcached"), ["kvstrata-ci-host", *sorted(OTHERS)]
    )
    return server_specs(tmp_path_factory.mktemp("servers"), without)


@pytest.fixture(scope="module")
def answers(specs: Mapping[str, ServerSpec]) -> Mapping[str, Answers]:
    """What each server answered; they run at the same time."""
    with ThreadPoolExecutor(len(specs)) as pool:
        return dict(zip(specs, pool.map(ask, specs.values()), strict=True))


def run(spec: ServerSpec, *arguments: str) -> Any:
    """The JSON that the server's Python prints, in the server's environment."""
    done = subprocess.run(
        [spec.python, *arguments],
        env=spec.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout[done.stdout.index("{") :])


def equal(answer: Generation, reference: Generation) -> bool:
    return compare(
        answer.output_ids,
        answer.output_logprobs,
        reference_ids=reference.output_ids,
        reference_logprobs=reference.output_logprobs,
    ).equal


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_kvcr_restores_the_prompt_whatever_kvcached_is_told(
    answers: Mapping[str, Answers], name: str
) -> None:
    computed, restored = answers[name].computed, answers[name].restored

    assert computed.cached_tokens == 0
    assert restored.cached_tokens == restored.cached_storage_tokens
    assert restored.cached_storage_tokens == (len(PROMPT) - 1) // PAGE_TOKENS * PAGE_TOKENS


@pytest.mark.parametrize("name", [ABSENT, OFF, ON])
def test_computed_and_restored_answers_are_those_of_a_server_without_kvcached(
    answers: Mapping[str, Answers], name: str
) -> None:
    reference = answers[ABSENT].computed

    assert equal(answers[name].computed, reference)
    assert equal(answers[name].restored, reference)


def test_the_comparison_notices_wrong_bytes_in_what_was_restored(
    answers: Mapping[str, Answers],
) -> None:
    reference = answers[ABSENT].computed

    assert equal(answers[DAMAGED].computed, reference)
    assert not equal(answers[DAMAGED].restored, reference)


def test_the_server_without_kvcached_has_only_the_slices_that_do_not_need_it(
    specs: Mapping[str, ServerSpec],
) -> None:
    ours = {"kvcached", *ON_KVCACHED, *OTHERS}

    assert ours & {*run(specs[ABSENT], "-c", INSTALLED)["names"]} == OTHERS
    assert ours & {*run(specs[ON], "-c", INSTALLED)["names"]} == ours


def test_with_the_switch_off_no_slice_on_kvcached_hooks_anything(
    specs: Mapping[str, ServerSpec],
) -> None:
    found = run(specs[OFF], "-c", LOADED)

    assert not ON_KVCACHED & {*found["hooking"]}
    assert found["pool"] == "MHATokenToKVPool"


def test_with_it_on_all_of_them_do_beside_all_others_and_the_pools_of_a_llama_stay_sglangs(
    specs: Mapping[str, ServerSpec],
) -> None:
    found = run(specs[ON], "-c", LOADED)

    assert HOOKING & ON_KVCACHED
    assert {*found["hooking"]} >= HOOKING & ON_KVCACHED
    assert {*found["together"]} == HOOKING
    assert found["pool"] == "MHATokenToKVPool"


def test_kvcacheds_autopatch_takes_the_pools_of_a_llama_unless_it_is_off(
    specs: Mapping[str, ServerSpec],
) -> None:
    variables = {**ENVIRONMENTS[ON]}
    del variables["KVCACHED_AUTOPATCH"]

    found = run(dataclasses.replace(specs[ON], extra_env=variables), "-c", LOADED)

    assert found["pool"] == "ElasticMHATokenToKVPool"
