# SPDX-License-Identifier: Apache-2.0
"""A scene: one request to one replica, and what came of it."""

from dataclasses import dataclass
from typing import Literal

from .answer import Answer
from .comparison import Comparison, compare

SceneId = Literal[
    "first-contact", "computed", "from-peer", "recomputed", "from-own-dram", "damaged", "dead-peer"
]


@dataclass(frozen=True)
class Scene:
    """`comparison` is with the first answer that any replica gave to the same prompt."""

    id: SceneId
    replica: str
    title: str
    what: str
    answer: Answer
    comparison: Comparison

    def summary(self) -> str:
        """The result in one line."""
        sources, timing = self.answer.sources, self.answer.timing
        parts = {
            "computed": sources.computed,
            "from the device": sources.device,
            "from the host pool": sources.host,
            "from own DRAM": sources.own_dram,
            "from the peer": sources.peer_dram,
        }
        tokens = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
        verdict = "equal" if self.comparison.equal else "DIFFERENT"
        return (
            f"{tokens}; first token after {timing.first_token_s * 1000:.0f} ms; answer {verdict} "
            f"(logprobs differ by at most {self.comparison.max_logprob_difference:.2g})"
        )


def compared(answer: Answer, reference: Answer) -> Comparison:
    """How far an answer is from the reference answer to the same prompt."""
    return compare(
        answer.generation.output_ids,
        answer.generation.output_logprobs,
        reference_ids=reference.generation.output_ids,
        reference_logprobs=reference.generation.output_logprobs,
    )
