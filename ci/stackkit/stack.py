# SPDX-License-Identifier: Apache-2.0
"""Stacks of slices as declared in stacks/*.toml, and the graph that they form together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from .error import StackkitError

Id = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]
ObjectId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]

HOST = "sglang"
"""The one distribution of which several versions are supported; see `Slice.releases`."""


class StackError(StackkitError):
    """A stack file that cannot be used: one line with the file, the key and the reason."""

    def __init__(self, file: str, key: str, reason: str) -> None:
        super().__init__(f"{file}: {key}: {reason}")
        self.file = file
        self.key = key
        self.reason = reason


class Upstream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A host project; `release` stands for the base until an export pins a commit and its tree.

    `series` is the common title of the pull requests; `sign_off` says whether the project asks for
    a developer's certificate of origin.
    """

    id: Id
    repository: Text
    branch: Text
    release: Text
    base_commit: ObjectId | None = None
    base_tree: ObjectId | None = None
    series: Text | None = None
    sign_off: bool = False


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A third-party distribution and what a slice supports of it.

    `version` is the one in the base environment; the sessions run on each of `also` as well.
    """

    distribution: Text
    version: Text
    also: tuple[Text, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.version, *self.also)


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a slice is offered upstream; `template` names the template of the description.

    `number` is what the upstream calls it, once it is open.
    """

    title: Text
    template: Text
    status: Literal["planned", "draft", "open", "merged", "closed"]
    number: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of tests in a session; it passes only if at least `min_tests` tests really ran.

    `processes` share the test files among them.
    """

    id: Id
    kind: Literal["cpu", "gpu", "integration", "bench"]
    session: Text
    required: bool
    min_tests: Annotated[int, msgspec.Meta(ge=1)]
    processes: Annotated[int, msgspec.Meta(ge=1)] = 1


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A package of the stack; `requires` names the slices that it imports directly."""

    id: Id
    package: Text
    requires: tuple[Id, ...]
    pins: tuple[Pin, ...]
    gates: tuple[Gate, ...]
    upstream: Id | None = None
    pull_request: PullRequest | None = None

    @property
    def distribution(self) -> str:
        return f"kvstrata-{self.id}"

    @property
    def module(self) -> str:
        return f"kvstrata.{self.id.replace('-', '_')}"

    @property
    def validation(self) -> str:
        return f"validate-{self.id}"

    @property
    def application(self) -> str:
        return f"apply-{self.id}"

    @property
    def releases(self) -> tuple[str, ...]:
        """The supported versions of the host, the base environment's first; none without a pin."""
        return next((pin.versions for pin in self.pins if pin.distribution == HOST), ())


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file. A slice is declared once; a stack names those of other stacks under `shares`.

    A stack that `combines` others, by the names of their files, declares nothing but `gates`, which
    run with all slices of these stacks in one environment.
    """

    title: Text
    combines: tuple[Id, ...] = ()
    gates: tuple[Gate, ...] = ()
    shares: tuple[Id, ...] = ()
    upstreams: tuple[Upstream, ...] = ()
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True)
class Combination:
    """All slices of several stacks, predecessors first, and what tests them together."""

    name: str
    slices: tuple[Slice, ...]
    gates: tuple[Gate, ...]

    @property
    def validation(self) -> str:
        return f"validate-{self.name}"

    @property
    def releases(self) -> tuple[str, ...]:
        """The versions of the host that every slice supports, in the order of the first pin."""
        supported = [entry.releases for entry in self.slices if entry.releases]
        return tuple(
            release
            for release in (supported[0] if supported else ())
            if all(release in each for each in supported)
        )


@dataclass(frozen=True)
class Stacks:
    """All stacks by name, and their slices by id in topological order: predecessors first."""

    stacks: Mapping[str, Stack]
    slices: dict[str, Slice]

    @property
    def releases(self) -> tuple[str, ...]:
        """Every version of the host that a slice supports, the base environment's first."""
        return tuple(
            dict.fromkeys(each for entry in self.slices.values() for each in entry.releases)
        )

    @property
    def combinations(self) -> dict[str, Combination]:
        """What the stacks that combine others make of them, by name."""
        return {
            name: Combination(name, self.closure(name), stack.gates)
            for name, stack in self.stacks.items()
            if stack.combines
        }

    def closure(self, name: str) -> tuple[Slice, ...]:
        """A slice, or all of a combination, with every predecessor; predecessors first."""
        wanted = {name}
        if name in self.stacks:
            combined = [self.stacks[each] for each in self.stacks[name].combines]
            wanted.update(entry.id for each in combined for entry in each.slices)
        for entry in reversed(self.slices.values()):
            if entry.id in wanted:
                wanted.update(entry.requires)
        return tuple(entry for entry in self.slices.values() if entry.id in wanted)

    def pinned(self, name: str) -> frozenset[str]:
        """The third-party distributions that the closure pins."""
        return frozenset(pin.distribution for entry in self.closure(name) for pin in entry.pins)

    def upstream(self, slice_id: str) -> Upstream | None:
        """The host project that the slice is offered to, if any."""
        for stack in self.stacks.values():
            for entry in stack.slices:
                if entry.id == slice_id:
                    return next(
                        (each for each in stack.upstreams if each.id == entry.upstream), None
                    )
        return None

    def series(self, slice_id: str) -> tuple[Slice, ...]:
        """The slices that are offered to the slice's upstream, predecessors first."""
        upstream = self.slices[slice_id].upstream
        offered = (each for each in self.slices.values() if each.pull_request is not None)
        return tuple(each for each in offered if each.upstream == upstream)

    def outsiders(self, name: str) -> tuple[Slice, ...]:
        """Every slice outside the closure: successors and those of other branches."""
        inside = self.closure(name)
        return tuple(entry for entry in self.slices.values() if entry not in inside)


def load(folder: Path) -> Stacks:
    """Read and check every stack file of `folder`; raises StackError."""
    stacks = {path.stem: _read(path) for path in sorted(folder.glob("*.toml"))}
    if not any(stack.slices for stack in stacks.values()):
        raise StackError(folder.name, "*.toml", "no stack file declares a slice")
    homes = _homes(stacks, folder.name)
    for name, stack in stacks.items():
        for key, reason in (*_faults(stack, homes), *_combining_faults(name, stack, stacks)):
            raise StackError(f"{folder.name}/{name}.toml", key, reason)
    slices = {entry.id: entry for stack in stacks.values() for entry in stack.slices}
    for entry in slices.values():
        for key, reason in _release_faults(entry, slices):
            name, index = homes[entry.id]
            raise StackError(f"{folder.name}/{name}.toml", f"slices[{index}].{key}", reason)
    known = Stacks(stacks, _in_order(slices, homes, folder.name))
    for combination in known.combinations.values():
        for key, reason in _combination_faults(combination, slices):
            raise StackError(f"{folder.name}/{combination.name}.toml", key, reason)
    return known


def _read(path: Path) -> Stack:
    file = f"{path.parent.name}/{path.name}"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Stack)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        raise StackError(file, place.rstrip("`").lstrip(".") or "top level", reason) from error
    except msgspec.DecodeError as error:
        raise StackError(file, "syntax", " ".join(str(error).split())) from error


def _homes(stacks: Mapping[str, Stack], folder: str) -> dict[str, tuple[str, int]]:
    """Where each slice is declared: the stack and the position in it."""
    homes: dict[str, tuple[str, int]] = {}
    for name, stack in stacks.items():
        for index, entry in enumerate(stack.slices):
            if entry.id in homes:
                other = homes[entry.id][0]
                raise StackError(
                    f"{folder}/{name}.toml",
                    f"slices[{index}].id",
                    f"{entry.id!r} is already declared in {other}.toml; name it under `shares`",
                )
            homes[entry.id] = (name, index)
    return homes


def _faults(stack: Stack, homes: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    own = {entry.id for entry in stack.slices}
    for shared in stack.shares:
        if shared in own or shared not in homes:
            yield "shares", f"no other stack declares a slice {shared!r}"
    upstreams = [upstream.id for upstream in stack.upstreams]
    yield from _repeated("upstreams", upstreams)
    for index, upstream in enumerate(stack.upstreams):
        yield from _unversioned(f"upstreams[{index}].release", upstream.release)
    known = own | set(stack.shares)
    for index, entry in enumerate(stack.slices):
        for key, reason in _slice_faults(entry, known, upstreams):
            yield f"slices[{index}].{key}", reason


def _slice_faults(entry: Slice, known: set[str], upstreams: list[str]) -> Iterator[tuple[str, str]]:
    for required in entry.requires:
        if required not in known:
            yield "requires", f"unknown slice {required!r}; this stack knows {_listed(known)}"
    yield from _repeated("requires", entry.requires)
    yield from _repeated("pins", [pin.distribution for pin in entry.pins])
    for index, pin in enumerate(entry.pins):
        yield from _pin_faults(f"pins[{index}]", pin)
    if entry.upstream is not None and entry.upstream not in upstreams:
        yield "upstream", f"unknown upstream {entry.upstream!r}; declared: {_listed(upstreams)}"
    if entry.pull_request is not None and entry.upstream is None:
        yield "pull_request", "needs `upstream`, the project that receives it"
    application = None if entry.upstream is None else entry.application
    yield from _gate_faults(entry.gates, entry.validation, application)


def _combining_faults(
    name: str, stack: Stack, stacks: Mapping[str, Stack]
) -> Iterator[tuple[str, str]]:
    if not stack.combines:
        if stack.gates:
            yield "gates", "only a stack that combines others has gates beside those of its slices"
        return
    for key in ("shares", "upstreams", "slices"):
        if getattr(stack, key):
            yield key, "a stack that combines others declares only `gates`"
    plain = {each for each, other in stacks.items() if not other.combines}
    for combined in stack.combines:
        if combined not in plain:
            yield "combines", f"no stack {combined!r} with slices; there are {_listed(plain)}"
    yield from _repeated("combines", stack.combines)
    if len(stack.combines) == 1:
        yield "combines", "one stack is no combination; name at least two"
    yield from _gate_faults(stack.gates, f"validate-{name}")


def _combination_faults(
    combination: Combination, slices: Mapping[str, Slice]
) -> Iterator[tuple[str, str]]:
    if combination.name in slices:
        yield "combines", f"a slice has the session {combination.validation!r}; rename this file"
    pinning = {entry.id: entry.releases for entry in combination.slices if entry.releases}
    if pinning and not combination.releases:
        supported = "; ".join(f"{each}: {', '.join(pinning[each])}" for each in sorted(pinning))
        yield "combines", f"no release of {HOST} is supported by every slice; {supported}"


def _gate_faults(
    gates: tuple[Gate, ...], validation: str, application: str | None = None
) -> Iterator[tuple[str, str]]:
    yield from _repeated("gates", [gate.id for gate in gates])
    own = [gate for gate in gates if gate.session != application]
    if not any(gate.required and gate.kind == "cpu" for gate in own):
        yield "gates", "no required gate of kind 'cpu'"
    yield from _repeated("gates", [f"{gate.kind} in {gate.session}" for gate in gates])
    for index, gate in enumerate(gates):
        sessions = [validation]
        if application is not None and gate.kind in {"cpu", "integration"}:
            sessions.append(application)
        expected, allowed = gate.session in sessions, " or ".join(map(repr, sessions))
        if gate.kind == "bench":
            expected, allowed = gate.session.startswith("bench-"), "'bench-<name>'"
        if not expected:
            yield (
                f"gates[{index}].session",
                f"{gate.session!r} for kind {gate.kind!r}, not {allowed}",
            )


def _pin_faults(key: str, pin: Pin) -> Iterator[tuple[str, str]]:
    yield from _unversioned(f"{key}.version", pin.version)
    for version in pin.also:
        yield from _unversioned(f"{key}.also", version)
    yield from _repeated(f"{key}.also", pin.versions)
    if pin.also and pin.distribution != HOST:
        yield f"{key}.also", f"only {HOST!r} may have several versions: no session runs the others"


def _release_faults(entry: Slice, slices: Mapping[str, Slice]) -> Iterator[tuple[str, str]]:
    for required in entry.requires:
        below = slices[required].releases
        for release in entry.releases:
            if below and release not in below:
                yield "pins", f"{HOST} {release} is not supported by {required!r}: {_listed(below)}"


def _repeated(key: str, values: list[str] | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for value, count in Counter(values).items():
        if count > 1:
            yield key, f"{value!r} is listed {count} times"


def _unversioned(key: str, value: str) -> Iterator[tuple[str, str]]:
    try:
        Version(value)
    except InvalidVersion:
        yield key, f"{value!r} is not a version"


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(ids)) or "none"


def _in_order(
    slices: Mapping[str, Slice], homes: Mapping[str, tuple[str, int]], folder: str
) -> dict[str, Slice]:
    graph = {entry.id: entry.requires for entry in slices.values()}
    try:
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1]
        name, index = homes[cycle[0]]
        raise StackError(
            f"{folder}/{name}.toml", f"slices[{index}].requires", f"cycle {' -> '.join(cycle)}"
        ) from error
    return {slice_id: slices[slice_id] for slice_id in order}
