# SPDX-License-Identifier: Apache-2.0
"""Which pools of a DeepSeek-V4 model are SGLang's own, which are managed, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points

from .gating import Circumstances, native_reason
from .transaction import IdSpace

SWA = "swa"
C4 = "c4"
C128 = "c128"
INDEXER = "indexer"
ATTENTION_STATES = "attention-states"
INDEXER_STATES = "indexer-states"
POOLS = (SWA, C4, C128, INDEXER, ATTENTION_STATES, INDEXER_STATES)
"""Every pool of a DeepSeek-V4 model."""

_ALWAYS_NATIVE = {
    C128: "it is small: 2 compressed tokens a page",
    ATTENTION_STATES: "its rows follow requests or rings, not page ids",
    INDEXER_STATES: "its rows follow rings, not page ids",
}


@dataclass(frozen=True)
class Ownership:
    """Who has the memory of one pool."""

    pool: str
    is_managed: bool
    why: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Claim:
    """A pool that an installed slice can manage; its page ids are those of `space`."""

    pool: str
    space: IdSpace
    by: str


CLAIMS = "kvstrata.exact_id.claims"
"""The group of entry points under which a slice lists its Claims for `installed_claims`."""

_OWN = Claim(SWA, IdSpace.SWA, "kvstrata-exact-id")
_claims = {SWA: _OWN}


def claim(entry: Claim) -> None:
    """Let a slice manage a pool from the next model on."""
    _claims[entry.pool] = entry


def claims() -> Mapping[str, Claim]:
    """The pools that installed slices can manage; a copy."""
    return dict(_claims)


def installed_claims() -> Mapping[str, Claim]:
    """The pools that slices of this environment would manage, loaded by SGLang or not."""
    found: list[Claim] = [_OWN, *(entry.load() for entry in entry_points(group=CLAIMS))]
    return {each.pool: each for each in found}


def layers_by_pool(compress_ratios: Sequence[int]) -> Mapping[str, int]:
    """In how many layers each pool has memory, of layers with these ratios: 0, 4 or 128."""
    c4, c128 = compress_ratios.count(4), compress_ratios.count(128)
    return {
        SWA: len(compress_ratios),
        C4: c4,
        C128: c128,
        INDEXER: c4,
        ATTENTION_STATES: c4 + c128,
        INDEXER_STATES: c4,
    }


def decide(
    seen: Circumstances,
    layers: Mapping[str, int],
    claimed: Mapping[str, Claim],
) -> Sequence[Ownership]:
    """The owner of each pool of POOLS; `layers` says in how many layers a pool has memory."""
    model_reason = native_reason(seen)
    decided: list[Ownership] = []
    for pool in POOLS:
        reason = model_reason or _pool_reason(pool, seen, layers)
        if reason is None and pool not in claimed:
            reason = "no installed slice manages it"
        if reason is None:
            decided.append(Ownership(pool, is_managed=True, why=f"by {claimed[pool].by}"))
        else:
            decided.append(Ownership(pool, is_managed=False, why=reason))
    return decided


def _pool_reason(pool: str, seen: Circumstances, layers: Mapping[str, int]) -> str | None:
    if layers.get(pool, 0) == 0:
        return "it has no layers"
    if pool == C4 and seen.hisparse:
        return "HiSparse addresses it by device ids of its own"
    if pool == INDEXER and seen.aiter_fp4:
        return "AITER splits FP4 payload and scales into two buffers"
    return _ALWAYS_NATIVE.get(pool)
