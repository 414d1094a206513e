# SPDX-License-Identifier: Apache-2.0
"""The upstream's formatter and linter: ruff, with the upstream's own settings where it has them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .error import ExportError

_CONFIGS = ("ruff.toml", ".ruff.toml")


@dataclass(frozen=True)
class Style:
    """What the upstream's checks ask of its Python files.

    The values are those of its repository, which a released wheel does not have.

    Args:
        first_party: packages that imports are sorted by.
        select: the linter's rules.
    """

    line_length: int
    select: tuple[str, ...]
    first_party: tuple[str, ...]

    def finish(
        self,
        root: Path,
        new: Sequence[str],
        edited: Sequence[tuple[str, str]],
        *,
        strict: bool = True,
    ) -> None:
        """Format what a layer wrote; if strict, raise ExportError for what the linter finds in it.

        Args:
            new: files that the layer added: formatted and sorted throughout.
            edited: files that it edited, each with its text before. One that was formatted stays
                so; in one that was not, nothing but the edit is touched, and nothing may be worse.
        """
        files = [file for file in new if file.endswith(".py")]
        if files:
            self._ruff(root, "check", "--fix", "--quiet", "--select", "I,F401", *files)
            self._ruff(root, "format", "--quiet", *files)
            if strict:
                self._refuse(self._findings(root, files), Counter())
        for file, text in edited:
            if file.endswith(".py"):
                known = self._finish_edited(root, file, text)
                if strict:
                    self._refuse(self._findings(root, [file]), known)

    def _finish_edited(self, root: Path, file: str, before: str) -> Counter[tuple[str, str, str]]:
        """Format the edit; returns what the linter had to say before."""
        place = root / file
        after = place.read_text(encoding="utf-8")
        place.write_text(before, encoding="utf-8")
        formatted = not self._ruff(root, "format", "--check", "--quiet", file).returncode
        findings = self._findings(root, [file])
        place.write_text(after, encoding="utf-8")
        if not any(code == "I001" for _, code, _ in findings):
            self._ruff(root, "check", "--fix", "--quiet", "--select", "I", file)
        if formatted:
            self._ruff(root, "format", "--quiet", file)
        return findings

    def _refuse(
        self, found: Counter[tuple[str, str, str]], known: Counter[tuple[str, str, str]]
    ) -> None:
        for file, code, message in found - known:
            raise ExportError(file, code, message, "write the edit so that the linter passes")

    def _findings(self, root: Path, files: Iterable[str]) -> Counter[tuple[str, str, str]]:
        """What the linter finds, without lines, which move."""
        done = self._ruff(root, "check", "--output-format", "concise", "--quiet", *files)
        found: Counter[tuple[str, str, str]] = Counter()
        for line in done.stdout.splitlines():
            place, _, said = line.partition(" ")
            code, _, message = said.partition(" ")
            if place.endswith(":"):
                found[place.split(":")[0], code.rstrip(":"), message] += 1
        return found

    def _ruff(self, root: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        settings = [] if self._has_settings(root) else self._settings(command)
        done = subprocess.run(
            [sys.executable, "-m", "ruff", command, "--no-cache", *settings, *arguments],
            cwd=root,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode > 1:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ExportError(str(root), f"ruff {command}", said[-1], "see the settings of `Style`")
        return done

    def _has_settings(self, root: Path) -> bool:
        project = root / "pyproject.toml"
        return any((root / name).is_file() for name in _CONFIGS) or (
            project.is_file() and "[tool.ruff" in project.read_text(encoding="utf-8")
        )

    def _settings(self, command: str) -> list[str]:
        settings = ["--isolated", "--config", f"line-length={self.line_length}"]
        if command == "check":
            known = ", ".join(f'"{name}"' for name in self.first_party)
            settings += ["--config", f"lint.isort.known-first-party=[{known}]"]
            selected = ", ".join(f'"{rule}"' for rule in self.select)
            settings += ["--config", f"lint.select=[{selected}]"]
        return settings
