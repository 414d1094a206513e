# SPDX-License-Identifier: Apache-2.0
"""What a slice declares: its hooks on pinned upstream functions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


class Kind(Enum):
    """How a hook meets its target; the values are those of SGLang's HookType."""

    BEFORE = "before"
    """hook(*args, **kwargs) returns (args, kwargs) for the target, or None to leave them."""
    AFTER = "after"
    """hook(result, *args, **kwargs) returns another result, or None to leave it."""
    AROUND = "around"
    """hook(target, *args, **kwargs) returns the result."""
    REPLACE = "replace"
    """hook(*args, **kwargs) returns the result; a class takes the place of a class."""


@dataclass(frozen=True)
class Pin:
    """A definition in one upstream version.

    `target` names it by the module that defines it, such as "sglang.srt.utils.common.is_cuda";
    `fingerprint` is what `python -m kvstrata.seams record <target>` prints.
    """

    target: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not _TARGET.fullmatch(self.target):
            raise ValueError(f"target is {self.target!r}; it must be a dotted name: module.name")
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise ValueError(
                f"fingerprint of {self.target} is {self.fingerprint!r}; it must be 16 hex digits, "
                f"as printed by: python -m kvstrata.seams record {self.target}"
            )


@dataclass(frozen=True)
class Hook:
    """One hook: `why` is one sentence, `pins` maps each supported upstream version to its pin."""

    kind: Kind
    function: Callable[..., object]
    why: str
    pins: Mapping[str, Pin]

    def __post_init__(self) -> None:
        if not self.pins:
            raise ValueError(f"pins of the hook {self.function!r} is empty; it must name a version")
        if isinstance(self.function, type) and self.kind is not Kind.REPLACE:
            raise ValueError(
                f"kind of the hook {self.function!r} is {self.kind.name}; a class can only REPLACE"
            )


@dataclass(frozen=True)
class Seams:
    """The hooks that one switch turns on.

    `slice` and `upstream` are distribution names; `switch` is one sentence that says what turns
    the feature on. Hooks on one target compose in the declared order, the first innermost.
    """

    slice: str
    upstream: str
    switch: str
    hooks: tuple[Hook, ...]

    def __post_init__(self) -> None:
        if not self.hooks:
            raise ValueError(f"hooks of {self.slice} is empty; declare at least one Hook")

    @property
    def opt_out(self) -> str:
        """How to do without these hooks, as part of a sentence."""
        return f"do not switch {self.slice} on ({self.switch.rstrip('.')})"
