# SPDX-License-Identifier: Apache-2.0
"""Puts hooks in place through SGLang's HookRegistry, all or none, and proves that they are."""

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

from .comparison import pin_for, pinned_target
from .error import Reason, SeamError
from .hook import Hook, Kind, Seams
from .target import Place, Target, cells, describe, is_original, layers, place_of

if TYPE_CHECKING:
    from sglang.srt.plugins.hook_registry import HookRegistry

_REGISTRY = "sglang.srt.plugins.hook_registry"


@dataclass(frozen=True)
class _Placed:
    """One hook, the place it belongs in, and what was there before."""

    seams: Seams
    hook: Hook
    target: Target
    place: Place
    original: object

    def error(self, reason: Reason, *, expected: str, found: str, remedy: str = "") -> SeamError:
        return SeamError(
            slice=self.seams.slice,
            target=self.target.dotted,
            reason=reason,
            expected=expected,
            found=found,
            remedy=remedy
            or f"Unload the plugin that did it (SGLANG_PLUGINS lists those to load), "
            f"or {self.seams.opt_out}.",
        )


_lock = Lock()
_placed: list[_Placed] = []


def apply(*seams: Seams) -> None:
    """Put every hook of `seams` in place and verify it; SeamError if one cannot be.

    All checks come before the first hook: nothing is half applied.

    Call it in the main thread, at the moment a feature is switched on. Seams that are in place
    already are only verified again. Called from a plugin while SGLang loads its plugins, the hooks
    take effect, and are verified, when all plugins have been loaded. Slices that hook the same
    target must be applied in one call, which composes them in the given order.
    """
    with _lock, _fail_closed(seams):
        known = _known()
        new = [each for each in seams if each not in known]
        targets = [(each, hook, pinned_target(each, hook)) for each in new for hook in each.hooks]
        plugins = _import_registry(seams)
        registry = plugins.HookRegistry
        loading = plugins._current_plugin_source.get() is not None
        placed = [_check(registry, *each) for each in targets]
        _refuse_foreign_replacements(registry, placed, pending=placed)
        for each in placed:
            source = plugins.HookSource(each.seams.slice, each.seams.slice)
            kind = plugins.HookType(each.hook.kind.value)
            registry.register(each.target.dotted, each.hook.function, kind, source=source)
        _placed.extend(placed)
        if loading:
            if placed:
                _verify_when_loaded(registry, new)
            return
        if placed:
            registry.apply_hooks()
    verify(*seams)


def verify(*seams: Seams) -> None:
    """SeamError unless every hook of `seams` has taken effect and is still in place.

    Without arguments, of all that was applied. Code that wraps an applied hook and says so with
    `__wrapped__` leaves it in place.
    """
    with _fail_closed(seams):
        _verify(seams)


def _verify(seams: Sequence[Seams]) -> None:
    known = _known()
    for wanted in seams:
        if wanted not in known:
            raise SeamError(
                slice=wanted.slice,
                target=pin_for(wanted.hooks[0], None).target,
                reason=Reason.NOT_APPLIED,
                expected="applied hooks",
                found="none",
                remedy="Call kvstrata.seams.apply first.",
            )
    placed = [each for each in _placed if not seams or each.seams in seams]
    if not placed:
        return
    registry = _import_registry([each.seams for each in placed]).HookRegistry
    for each in placed:
        _verify_in_place(registry, each)
    _refuse_foreign_replacements(registry, placed, pending=())


@contextmanager
def _fail_closed(seams: Sequence[Seams]) -> Iterator[None]:
    """SGLang logs and forgets any Exception of a plugin: let none of ours be one."""
    try:
        yield
    except Exception as error:
        raise SeamError(
            slice=_names(seams),
            target="its targets",
            reason=Reason.NOT_APPLIED,
            expected="hooks that can be checked",
            found=repr(error),
            remedy="This is a defect, or an SGLang with other plugin hooks: report it.",
        ) from error


def _names(seams: Iterable[Seams]) -> str:
    return ", ".join(each.slice for each in seams) or "kvstrata-seams"


def _known() -> list[Seams]:
    return [each.seams for each in _placed]


def _import_registry(seams: Iterable[Seams]) -> ModuleType:
    try:
        return importlib.import_module(_REGISTRY)
    except Exception as error:
        raise SeamError(
            slice=_names(seams),
            target=f"{_REGISTRY}.HookRegistry",
            reason=Reason.UPSTREAM_MISSING,
            expected="an SGLang with plugin hooks",
            found=repr(error),
            remedy="Install an SGLang version that the slice supports, with what it needs.",
        ) from error


def _check(registry: type["HookRegistry"], seams: Seams, hook: Hook, target: Target) -> _Placed:
    """The hook with its place, which nobody else has touched; else SeamError."""
    try:
        place = place_of(target)
    except LookupError as error:
        raise SeamError(
            slice=seams.slice,
            target=target.dotted,
            reason=Reason.TARGET_MISSING,
            expected="what its source defines",
            found=str(error.args[0]),
            remedy=f"Repair the {seams.upstream} installation, or {seams.opt_out}.",
        ) from error
    original = place.read()
    placed = _Placed(seams, hook, target, place, original)
    if target.dotted in registry._patched:
        raise placed.error(
            Reason.TAKEN, expected="the original", found=f"hooks of {_sources(registry, target)}"
        )
    if isinstance(original, type) != isinstance(hook.function, type) or not callable(original):
        raise placed.error(
            Reason.NOT_APPLIED,
            expected="a function for a function, or a class to replace a class",
            found=f"{describe(hook.function)} for {describe(original)}",
            remedy=f"This is a defect of {seams.slice}: report it, and {seams.opt_out}.",
        )
    if not is_original(target, original):
        raise placed.error(Reason.TAKEN, expected="the original", found=describe(original))
    return placed


def _sources(registry: type["HookRegistry"], target: Target) -> str:
    hooks = registry._hooks.get(target.dotted, ())
    return ", ".join(sorted({_source_name(source) for _, _, source in hooks})) or "nobody on record"


def _source_name(source: object) -> str:
    return str(getattr(source, "plugin_name", None) or "an unnamed plugin")


def _refuse_foreign_replacements(
    registry: type["HookRegistry"], placed: Sequence[_Placed], *, pending: Sequence[_Placed]
) -> None:
    """HookRegistry keeps only the last REPLACE, under all hooks of other kinds.

    So a second one silences the first, and one of another plugin puts a function under our hooks
    that no fingerprint knows.
    """
    replacements: dict[str, list[tuple[Callable[..., object], str]]] = defaultdict(list)
    for dotted in {each.target.dotted for each in placed}:
        for kind, function, source in registry._hooks.get(dotted, ()):
            if kind.value == Kind.REPLACE.value:
                replacements[dotted].append((function, _source_name(source)))
    for each in pending:
        if each.hook.kind is Kind.REPLACE:
            replacements[each.target.dotted].append((each.hook.function, each.seams.slice))
    ours = {id(each.hook.function) for each in _placed} | {id(e.hook.function) for e in pending}
    for each in placed:
        found = replacements[each.target.dotted]
        if len(found) > 1 or any(id(function) not in ours for function, _ in found):
            raise each.error(
                Reason.TAKEN,
                expected="no REPLACE hook of another plugin",
                found=", ".join(f"{describe(function)} by {name}" for function, name in found),
            )


def _verify_when_loaded(registry: type["HookRegistry"], seams: Sequence[Seams]) -> None:
    """load_plugins() ends with apply_hooks(): verify right after it, once."""
    apply_hooks: classmethod[HookRegistry, [], None] = vars(registry)["apply_hooks"]

    def apply_hooks_and_verify(cls: type["HookRegistry"]) -> None:
        setattr(cls, "apply_hooks", apply_hooks)  # noqa: B010
        cls.apply_hooks()
        verify(*seams)

    setattr(registry, "apply_hooks", classmethod(apply_hooks_and_verify))  # noqa: B010


def _verify_in_place(registry: type["HookRegistry"], placed: _Placed) -> None:
    expected = f"the hook {describe(placed.hook.function)}"
    try:
        now = place_of(placed.target).read()
    except LookupError as error:
        raise placed.error(Reason.REPLACED, expected=expected, found=str(error.args[0])) from error
    chain = list(layers(now))
    reached = (item for layer in chain for item in (layer, *cells(layer)))
    if not any(item is placed.hook.function for item in reached):
        if placed.target.dotted in registry._patched:
            raise placed.error(Reason.REPLACED, expected=expected, found=describe(now))
        raise placed.error(
            Reason.NOT_APPLIED,
            expected=expected,
            found=describe(now),
            remedy="SGLang's log has the traceback of applying the hooks of this target.",
        )
    if not isinstance(placed.original, type) and not any(each is placed.original for each in chain):
        found = f"{describe(chain[-1])} under the hook"
        raise placed.error(Reason.REPLACED, expected=describe(placed.original), found=found)
    if isinstance(placed.place.owner, ModuleType):
        _verify_importers(placed)


def _verify_importers(placed: _Placed) -> None:
    """A module that imported the target by name must have the hooked one."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is placed.original:
                raise placed.error(
                    Reason.NOT_APPLIED,
                    expected="the hooked one in every module that imported it",
                    found=f"the original as {name}.{attribute}",
                    remedy=f"Import {name} later, or {placed.seams.opt_out}.",
                )
