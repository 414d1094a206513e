# SPDX-License-Identifier: Apache-2.0
"""The story that the demo plays on its replicas, scene by scene."""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kvstrata_host import damage
from kvstrata_host.ports import free_ports
from kvstrata_host.spec import Json

from . import prompt
from .answer import Answer
from .hint import Hint, fetch_hint, page_hashes
from .outcome import Outcome
from .progress import Progress
from .prompt import Tokens
from .replica import PAGE_SIZE_TOKENS, Replica
from .scene import Scene, SceneId, compared


@dataclass(frozen=True)
class Plan:
    """What is played; token counts are per request, `ranks` per replica.

    `tuning` holds options of kvcr-tuning, for every server.
    """

    ranks: int
    prompt_tokens: int
    new_tokens: int
    seed: int
    start_timeout_s: float
    tuning: Mapping[str, Json] = field(default_factory=dict)

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens + PAGE_SIZE_TOKENS

    @property
    def prompt_pages(self) -> int:
        return self.prompt_tokens // PAGE_SIZE_TOKENS


class Story:
    """Plays a plan; servers run only inside `play`."""

    def __init__(self, plan: Plan, *, model: Path, logs: Path, progress: Progress) -> None:
        self.plan = plan
        self._model = model
        self._logs = logs
        self._progress = progress
        self._scenes: list[Scene] = []
        self._ports = iter(free_ports(9, run=plan.ranks))

    def play(self) -> Outcome:
        plan, progress = self.plan, self._progress
        main, other = self._draw("main"), self._draw("unrelated")
        progress.step("prompt", f"{plan.prompt_tokens} tokens, seed {plan.seed}; hashing its pages")
        main_hashes = page_hashes(main, page_size_tokens=PAGE_SIZE_TOKENS)
        other_hashes = page_hashes(other, page_size_tokens=PAGE_SIZE_TOKENS)
        a = self._replica("A")
        b = self._replica("B")
        d = self._replica("D", {damage.VARIABLE: damage.RESTORED_PAGES})
        began_s = progress.elapsed_s
        with self._started(a, b, d):
            ready_s = progress.elapsed_s
            progress.step("replicas", f"all three ready after {ready_s - began_s:.0f} s")
            hint = fetch_hint(a.endpoint, main_hashes)
            self._warm_up(a, b, d, other, hint=fetch_hint(a.endpoint, other_hashes))

            reference = self._compute(a, main)
            self._play("from-peer", b, main, reference, hint=hint)

            self._empty(b)
            before = b.log.end()
            self._play("recomputed", b, main, reference)
            b.wait_for_backup(since=before, pages=plan.prompt_pages)

            b.flush()
            self._play("from-own-dram", b, main, reference)

            self._play("damaged", d, main, reference, hint=hint)

            self._empty(b)
            progress.step("replica A", "killed (SIGKILL)", style="red")
            a.server.kill()
            before = b.log.end()
            self._play("dead-peer", b, main, reference, hint=hint)
            outcome = Outcome(
                scenes=tuple(self._scenes),
                survivor_healthy=b.healthy(),
                dead_peer_noticed=b.log.since(before).peer_unreachable(),
                start_s=ready_s - began_s,
                play_s=progress.elapsed_s - ready_s,
            )
            progress.step("replicas", "stopping")
        return outcome

    def _draw(self, name: str) -> Tokens:
        return prompt.draw(name, count=self.plan.prompt_tokens, seed=self.plan.seed)

    def _replica(self, name: str, environment: dict[str, str] | None = None) -> Replica:
        return Replica(
            name,
            ports=(next(self._ports), next(self._ports), next(self._ports)),
            ranks=self.plan.ranks,
            model=self._model,
            folder=self._logs,
            tokens=self.plan.context_tokens,
            start_timeout_s=self.plan.start_timeout_s,
            progress=self._progress.starting,
            environment=environment or {},
            settings={"tuning": dict(self.plan.tuning)} if self.plan.tuning else None,
        )

    @contextlib.contextmanager
    def _started(self, *replicas: Replica) -> Iterator[None]:
        with contextlib.ExitStack() as started:
            for each in replicas:
                started.callback(each.server.kill)
                self._progress.step(f"replica {each.name}", f"starting, KVCR at {each.endpoint}")
            with ThreadPoolExecutor(len(replicas)) as pool:
                for starting in [pool.submit(each.server.start) for each in replicas]:
                    starting.result()
            yield

    def _warm_up(self, a: Replica, b: Replica, d: Replica, other: Tokens, *, hint: Hint) -> None:
        """Leave first-use costs (threads, allocators, the connection between peers) behind."""
        self._progress.step("warm-up", "each replica computes a prompt that is used no more")
        for each in (b, d):
            own = prompt.draw(each.name, count=self.plan.prompt_tokens, seed=self.plan.seed)
            each.ask(own, new_tokens=self.plan.new_tokens)
        before = a.log.end()
        computed = a.ask(other, new_tokens=self.plan.new_tokens)
        a.wait_for_backup(since=before, pages=self.plan.prompt_pages)
        self._play("first-contact", b, other, computed, hint=hint)

    def _compute(self, a: Replica, main: Tokens) -> Answer:
        before = a.log.end()
        reference = self._play("computed", a, main, None)
        lines = a.wait_for_backup(since=before, pages=self.plan.prompt_pages)
        backups = [backup for backup in lines.backups() if backup.rank == 0]
        pages, took_ms = sum(b.held for b in backups), sum(b.duration_ms for b in backups)
        self._progress.step("replica A", f"backed up {pages} pages in {took_ms:.0f} ms")
        return reference

    def _empty(self, replica: Replica) -> None:
        """Leave the replica nothing to find; storage last, or a late backup would fill it again."""
        self._progress.step(f"replica {replica.name}", "emptied: device, host and KVCR")
        replica.flush()
        replica.clear_storage()

    def _play(
        self,
        scene: SceneId,
        replica: Replica,
        tokens: Tokens,
        reference: Answer | None,
        *,
        hint: Hint | None = None,
    ) -> Answer:
        title, what = _TITLES[scene]
        self._progress.step(f"replica {replica.name}", f"{title}: {what}", style="cyan")
        answer = replica.ask(tokens, new_tokens=self.plan.new_tokens, hint=hint)
        comparison = compared(answer, answer if reference is None else reference)
        played = Scene(scene, replica.name, title, what, answer, comparison)
        self._scenes.append(played)
        self._progress.step("", played.summary())
        return answer


_TITLES: dict[SceneId, tuple[str, str]] = {
    "first-contact": ("First contact", "another prompt, restored from A over a new connection"),
    "computed": ("Computed", "nobody has the prompt; A computes it and backs it up"),
    "from-peer": ("From a peer", "a hint names A; B restores the prompt from A's DRAM"),
    "recomputed": ("Recomputed", "no hint, nothing cached; B computes the same prompt"),
    "from-own-dram": ("From own DRAM", "device and host flushed; B restores from its own KVCR"),
    "damaged": ("Damaged on purpose", "D restores from A, and its restored bytes are corrupted"),
    "dead-peer": ("Dead peer", "the hint names A, which was killed; B serves on its own"),
}
