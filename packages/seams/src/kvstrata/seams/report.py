# SPDX-License-Identifier: Apache-2.0
"""The hooks of the installed slices against the installed upstream, and a trial of them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from .application import apply
from .comparison import installed_version, pin_for, pinned_target
from .error import Reason, SeamError
from .hook import Seams
from .target import find

ENTRY_POINT_GROUP = "kvstrata.seams"
SUPPORTED = "supported"
APPLIED = "applied"


@dataclass(frozen=True)
class Row:
    """One hook. `status` compares sources; `trial` is None where nothing was tried."""

    slice: str
    target: str
    kind: str
    why: str
    switch: str
    upstream: str
    status: str
    detail: str = ""
    trial: str | None = None

    @property
    def is_good(self) -> bool:
        return self.status == SUPPORTED and self.trial in (None, APPLIED)

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


def installed_seams() -> tuple[list[Seams], list[str]]:
    """The Seams that installed slices declare, and one line for each that cannot be loaded."""
    from importlib.metadata import entry_points

    seams: list[Seams] = []
    failures: list[str] = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name):
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - whatever a slice raises is what is reported
            failures.append(f"{point.name} ({point.value}) cannot be loaded: {error!r}")
            continue
        if isinstance(loaded, Seams):
            seams.append(loaded)
        else:
            failures.append(f"{point.name} ({point.value}) is not a Seams but {loaded!r}")
    return seams, failures


def compare(seams: Seams) -> list[Row]:
    """One row for each hook, from sources alone."""
    version = installed_version(seams.upstream)
    rows: list[Row] = []
    for hook in seams.hooks:
        row = Row(
            slice=seams.slice,
            target=pin_for(hook, version).target,
            kind=hook.kind.value,
            why=hook.why,
            switch=seams.switch,
            upstream=f"{seams.upstream} {version or 'not installed'}",
            status=SUPPORTED,
        )
        try:
            pinned_target(seams, hook)
        except SeamError as error:
            row = replace(row, status=error.reason.value, detail=_detail(error))
        rows.append(row)
    return rows


def try_out(seams: Sequence[Seams], rows: Iterable[Row]) -> list[Row]:
    """`rows` with what came of applying, in this process, every slice that is wholly supported."""
    rows = list(rows)
    refused = {row.slice: row for row in rows if row.status != SUPPORTED}
    error = _applied([each for each in seams if each.slice not in refused])

    def outcome(row: Row) -> str:
        if row.status != SUPPORTED:
            return "not applied"
        if row.slice in refused:
            cause = refused[row.slice]
            return f"not applied: {cause.target} is {cause.status}"
        if error is None:
            return APPLIED
        if (row.slice, row.target) == (error.slice, error.target):
            return f"{error.reason.value}: {_detail(error)}"
        return f"not applied: stopped by {error.slice}, {error.target} ({error.reason.value})"

    return [replace(row, trial=outcome(row)) for row in rows]


def pins_to_paste(upstream: str, targets: Iterable[str]) -> tuple[list[str], list[str]]:
    """Lines for a hook's `pins`, and one line for each target that the upstream does not define."""
    version = installed_version(upstream)
    if version is None:
        return [], [f"{upstream} is not installed"]
    lines: list[str] = []
    failures: list[str] = []
    for dotted in targets:
        try:
            lines.append(f'"{version}": Pin("{dotted}", "{find(dotted).fingerprint}"),')
        except LookupError as error:
            failures.append(f"{dotted}: {error.args[0]} ({upstream} {version})")
    return lines, failures


def _applied(seams: Sequence[Seams]) -> SeamError | None:
    if not seams:
        return None
    try:
        # As a server does: other plugins first, since they may hook the same targets.
        from sglang.srt.plugins import load_plugins

        load_plugins()
        apply(*seams)
    except SeamError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an upstream that cannot be imported is a finding
        return SeamError(
            slice=seams[0].slice,
            target=pin_for(seams[0].hooks[0], installed_version(seams[0].upstream)).target,
            reason=Reason.NOT_APPLIED,
            expected="SGLang's plugins to load",
            found=repr(error),
            remedy="Repair the SGLang installation.",
        )
    return None


def _detail(error: SeamError) -> str:
    return f"expected {error.expected}; found {error.found}"
