# SPDX-License-Identifier: Apache-2.0
"""The root of what stackkit raises when the checkout or the machine is at fault."""


class StackkitError(Exception):
    """Its text is meant for the person who called the session."""
