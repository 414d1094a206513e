# SPDX-License-Identifier: Apache-2.0
"""Applying this slice's hooks at the moment when the backend is chosen."""

from kvstrata.seams import SeamError, Seams, apply

from .errors import StartupError


def activate(seams: Seams) -> None:
    """Apply and verify hooks; raises StartupError, caused by the SeamError, if one cannot be.

    At start, SGLang stops the server for any exception of the scheduler. At run time it refuses to
    attach and the server goes on, which the SystemExit that a SeamError is would not let it.
    """
    try:
        apply(seams)
    except SeamError as error:
        raise StartupError(str(error)) from error
