# SPDX-License-Identifier: Apache-2.0
"""ENABLE_KVCACHED in each of its positions, and what a slice does by it."""

from typing import Any

import pytest

from .fixtures import Plugin

OFF = (None, "", "0", "false", "FALSE")
ON = ("1", "true", "TRUE")


def turn(environment: pytest.MonkeyPatch, value: str | None) -> None:
    """Set the switch, or unset it for None."""
    if value is None:
        environment.delenv("ENABLE_KVCACHED", raising=False)
    else:
        environment.setenv("ENABLE_KVCACHED", value)


def check_switch_decides(
    environment: pytest.MonkeyPatch, value: str | None, names: list[str]
) -> Any:
    """Returns a pool made under the switch: of it, `names` are managed if that is on."""
    from .owners import make_watched_pool, managed

    turn(environment, value)

    pool, touched = make_watched_pool()

    is_on = value in ON
    assert touched is is_on
    assert managed(pool) == (names if is_on else [])
    return pool


def check_plugin_stays_idle(environment: pytest.MonkeyPatch, plugin: Plugin) -> None:
    """Loaded in this environment, `plugin` neither hooks nor claims anything."""
    environment.setattr(plugin, "apply", lambda seams: pytest.fail("hooked"))
    environment.setattr(plugin, "claim", lambda entry: pytest.fail("claimed"))

    plugin.load()
