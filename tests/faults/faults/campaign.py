# SPDX-License-Identifier: Apache-2.0
"""The loop: a fault, requests while it lasts, requests after it, and what became of them."""

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from demo import prompt
from demo.answer import Answer
from demo.hint import Hint, fetch_hint, page_hashes
from demo.progress import Progress
from demo.prompt import Tokens
from demo.replica import PAGE_SIZE_TOKENS, Replica
from demo.scene import compared

from kvstrata_host import damage
from kvstrata_host.ports import free_ports
from kvstrata_host.server import RequestError, ServerError
from kvstrata_host.spec import Json

from .fault import FAULTS, Stage, schedule
from .relay import Relay
from .tally import Report, Tally

_LOOPBACK = "127.0.0.1"
_RELAYED = "127.0.0.2"
_REQUESTS_DURING = 2
_RECOVERY_S = 30.0
_REQUEST_TIMEOUT_S = 120.0
_TIMEOUTS: dict[str, Json] = {
    # Longer than the longest freeze: a KVCR that stood still for longer writes for no peer again.
    "operation_timeout_seconds": 15,
    "abandon_timeout_seconds": 30,
    # Longer than what the slow peer takes to greet.
    "peer_probe_timeout_seconds": 1,
}


@dataclass(frozen=True)
class Plan:
    """How many faults are made, and on what; the seed draws prompts and moments.

    `tuning` holds options of kvcr-tuning, for every server.
    """

    faults: int
    prompts: int
    prompt_tokens: int
    new_tokens: int
    seed: int
    start_timeout_s: float
    tuning: Mapping[str, Json] = field(default_factory=dict)

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens + PAGE_SIZE_TOKENS


@dataclass(frozen=True)
class Case:
    """A prompt, the hint that names the source, and the answer computed without any cache."""

    tokens: Tokens
    hint: Hint
    reference: Answer


class Campaign:
    """Plays a plan; servers run only inside `run`. The target's DRAM holds two prompts, no more."""

    def __init__(
        self, plan: Plan, *, model: Path, page_bytes: int, logs: Path, progress: Progress
    ) -> None:
        self.plan = plan
        self._model = model
        self._logs = logs
        self._progress = progress
        self._pages = plan.prompt_tokens // PAGE_SIZE_TOKENS
        self._ports = iter(free_ports(9))
        self._random = random.Random(plan.seed)
        small = {"dram_bytes": 2 * self._pages * page_bytes}
        self._source = self._replica("A", {"advertise_host": _RELAYED})
        self._target = self._replica("B", small)
        self._damaged = self._replica("D", small, {damage.VARIABLE: damage.RESTORED_PAGES})
        self._prompts = [
            prompt.draw(f"fault {each}", count=plan.prompt_tokens, seed=plan.seed)
            for each in range(plan.prompts)
        ]

    def run(self) -> Report:
        port = int(self._source.endpoint.rpartition(":")[2])
        with (
            Relay((_RELAYED, port), (_LOOPBACK, port)) as relay,
            self._started(self._source, self._target, self._damaged),
        ):
            self._progress.step("reference", f"{len(self._prompts)} prompts, without any cache")
            cases = [self._case(tokens) for tokens in self._prompts]
            self._refill()
            detected = self._is_damage_detected(cases[0])
            self._damaged.server.kill()
            stage = Stage(self._source, relay, self._refill, self._random)
            return Report(self._make_faults(stage, cases), detected)

    def _make_faults(self, stage: Stage, cases: list[Case]) -> Mapping[str, Tally]:
        tallies: defaultdict[str, Tally] = defaultdict(Tally)
        turn = cycle(cases)
        for number, kind in enumerate(schedule(self.plan.faults), start=1):
            tally = tallies[kind]
            tally.faults += 1
            began_s = self._progress.elapsed_s
            with FAULTS[kind](stage):
                for _ in range(_REQUESTS_DURING):
                    self._ask(next(turn), tally)
            recovered = self._recover(turn, tally)
            tally.recovered += recovered
            ill = [each for each in (self._target, self._source) if not each.healthy()]
            tally.lost += len(ill)
            # Without a source that serves, the next faults would show nothing.
            again = ill if recovered else [*ill, self._source]
            for each in dict.fromkeys(again):
                each.server.kill()
                each.server.start()
            if again:
                self._refill()
            self._progress.step(
                f"{number}/{self.plan.faults}",
                f"{kind}: {'recovered' if recovered else 'not recovered'} after "
                f"{self._progress.elapsed_s - began_s:.1f} s; {tally.wrong} wrong, "
                f"{tally.hung} hung, {tally.lost} lost of this kind",
                style="" if tally.clean else "red",
            )
        return dict(tallies)

    def _recover(self, turn: Iterator[Case], tally: Tally) -> bool:
        """Ask until the target restores from the peer again, after leaving it alone for a while."""
        deadline = time.monotonic() + _RECOVERY_S
        while time.monotonic() < deadline:
            answer = self._ask(next(turn), tally)
            if answer is not None and answer.sources.peer_dram:
                return True
            time.sleep(0.5)
        return False

    def _ask(self, case: Case, tally: Tally) -> Answer | None:
        """One request that finds nothing on the device or in the host pool; None if unanswered."""
        tally.requests += 1
        try:
            self._target.flush()
            answer = self._target.ask(
                case.tokens,
                new_tokens=self.plan.new_tokens,
                hint=case.hint,
                timeout_s=_REQUEST_TIMEOUT_S,
            )
        except RequestError as error:
            tally.hung += 1
            self._progress.step("request", str(error).splitlines()[0], style="red")
            return None
        tally.add(answer.sources)
        if not compared(answer, case.reference).equal:
            tally.wrong += 1
        return answer

    def _case(self, tokens: Tokens) -> Case:
        """Raises ServerError if the target had any of a prompt that it has never seen."""
        reference = self._target.ask(tokens, new_tokens=self.plan.new_tokens)
        if reference.generation.cached_tokens:
            problem = f"{reference.generation.cached_tokens} tokens of the reference were cached"
            raise ServerError(self._target.name, problem, self._target.log.path)
        hashes = page_hashes(tokens, page_size_tokens=PAGE_SIZE_TOKENS)
        return Case(tokens, fetch_hint(self._source.endpoint, hashes), reference)

    def _refill(self) -> None:
        """Have the source compute every prompt and back it up."""
        before = self._source.log.end()
        for tokens in self._prompts:
            self._source.ask(tokens, new_tokens=self.plan.new_tokens)
        self._source.wait_for_backup(since=before, pages=self._pages * len(self._prompts))

    def _is_damage_detected(self, case: Case) -> bool:
        answer = self._damaged.ask(case.tokens, new_tokens=self.plan.new_tokens, hint=case.hint)
        restored, equal = answer.sources.peer_dram, compared(answer, case.reference).equal
        self._progress.step(
            "damage", f"{restored} tokens damaged, answer {'equal' if equal else 'different'}"
        )
        return bool(restored) and not equal

    def _replica(
        self, name: str, settings: Mapping[str, Json], environment: Mapping[str, str] | None = None
    ) -> Replica:
        return Replica(
            name,
            ports=(next(self._ports), next(self._ports), next(self._ports)),
            ranks=1,
            model=self._model,
            folder=self._logs,
            tokens=self.plan.context_tokens,
            start_timeout_s=self.plan.start_timeout_s,
            progress=self._progress.starting,
            settings={**_TIMEOUTS, **settings, "tuning": dict(self.plan.tuning)},
            environment=environment or {},
        )

    @contextlib.contextmanager
    def _started(self, *replicas: Replica) -> Iterator[None]:
        with contextlib.ExitStack() as started:
            for each in replicas:
                started.callback(each.server.kill)
            with ThreadPoolExecutor(len(replicas)) as pool:
                for starting in [pool.submit(each.server.start) for each in replicas]:
                    starting.result()
            yield
