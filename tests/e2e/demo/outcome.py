# SPDX-License-Identifier: Apache-2.0
"""What was seen in a whole run."""

from dataclasses import dataclass

from .scene import Scene, SceneId


@dataclass(frozen=True)
class Outcome:
    """The scenes in the order in which they were played, and how B fared without its peer."""

    scenes: tuple[Scene, ...]
    survivor_healthy: bool
    dead_peer_noticed: bool
    start_s: float
    play_s: float

    def __getitem__(self, scene: SceneId) -> Scene:
        for each in self.scenes:
            if each.id == scene:
                return each
        raise KeyError(scene)

    @property
    def peer_restore_speedup(self) -> float:
        """Time to the first token: recomputed by restored from the peer."""
        return self._speedup("from-peer")

    @property
    def local_restore_speedup(self) -> float:
        """Time to the first token: recomputed by restored from own DRAM."""
        return self._speedup("from-own-dram")

    @property
    def max_logprob_difference(self) -> float:
        """The largest over all scenes whose answers have to be equal."""
        return max(
            each.comparison.max_logprob_difference for each in self.scenes if each.id != "damaged"
        )

    def _speedup(self, restored: SceneId) -> float:
        computed_s = self["recomputed"].answer.timing.first_token_s
        return computed_s / self[restored].answer.timing.first_token_s
