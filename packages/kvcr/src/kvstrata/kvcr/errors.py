# SPDX-License-Identifier: Apache-2.0
"""Errors an operator can meet, named by what has to be done next."""


class KvcrError(Exception):
    """Root of every error that this package raises."""


class ConfigError(KvcrError):
    """A setting has to be changed before the server can start.

    Args:
        setting: the setting as the operator writes it.
        value: the value that was seen.
        allowed: what would have been accepted.
        fix: what to do, as one sentence.
    """

    def __init__(self, setting: str, value: object, allowed: str, fix: str) -> None:
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.fix = fix
        super().__init__(f"{setting} is {value!r}; allowed: {allowed}. {fix}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, str, str]]:
        return type(self), (self.setting, self.value, self.allowed, self.fix)


class MissingDependencyError(KvcrError):
    """Something has to be installed before the server can start."""


class StartupError(KvcrError):
    """KVCR could not be started; the server has to be started again once the cause is gone."""
