# SPDX-License-Identifier: Apache-2.0
"""A slice's pins against the installed upstream, read from its source: nothing is imported."""

from .error import Reason, SeamError
from .hook import Hook, Pin, Seams
from .target import Target, find


def installed_version(distribution: str) -> str | None:
    """The installed version without a local label, which names a build and not a source."""
    # Costs as much as the rest of this package: only for those who look something up.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return None


def pin_for(hook: Hook, version: str | None) -> Pin:
    """The pin of `version`; of the last version declared where that one is not known."""
    if version is not None and version in hook.pins:
        return hook.pins[version]
    return list(hook.pins.values())[-1]


def pinned_target(seams: Seams, hook: Hook) -> Target:
    """The hook's target in the installed upstream, its source being as pinned; else SeamError."""
    version = installed_version(seams.upstream)
    pin = pin_for(hook, version)
    supported = f"{seams.upstream} {' or '.join(hook.pins)}"
    way_out = f"or a {seams.slice} release that supports it, or {seams.opt_out}."
    if version is None:
        raise SeamError(
            slice=seams.slice,
            target=pin.target,
            reason=Reason.UPSTREAM_MISSING,
            expected=supported,
            found=f"no {seams.upstream}",
            remedy=f"Install {supported}, or {seams.opt_out}.",
        )
    found_version = f"{seams.upstream} {version}"
    if version not in hook.pins:
        raise SeamError(
            slice=seams.slice,
            target=pin.target,
            reason=Reason.UNKNOWN_VERSION,
            expected=supported,
            found=found_version,
            remedy=f"Install {supported}, {way_out}",
        )
    remedy = f"Reinstall an unmodified {found_version}, {way_out}"
    try:
        target = find(pin.target)
    except LookupError as error:
        raise SeamError(
            slice=seams.slice,
            target=pin.target,
            reason=Reason.TARGET_MISSING,
            expected=f"its definition in {found_version}",
            found=str(error.args[0]),
            remedy=remedy,
        ) from error
    if target.fingerprint != pin.fingerprint:
        raise SeamError(
            slice=seams.slice,
            target=pin.target,
            reason=Reason.DRIFTED,
            expected=f"fingerprint {pin.fingerprint} in {found_version}",
            found=f"fingerprint {target.fingerprint}",
            remedy=remedy,
        )
    return target
