# SPDX-License-Identifier: Apache-2.0
"""Git without a network, without the user's settings and with commits that can be made again."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .error import ExportError

_NOBODY = ("kvstrata export", "export@kvstrata.invalid")
# A constant: the same layers on the same base give the same commits.
_DATE = "1767225600 +0000"


@dataclass(frozen=True)
class Repository:
    """A working tree with its repository."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Repository:
        """A new repository in an existing folder."""
        made = cls(folder)
        made.run("init", "--quiet", "--initial-branch", "base")
        return made

    def run(self, *arguments: str, text: str | None = None) -> str:
        """What git prints; raises ExportError with git's own last line if it fails."""
        done = self._call(arguments, text)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
            raise ExportError(
                str(self.folder),
                f"git {arguments[0]}",
                said[-1].strip(),
                f"run it there: git {' '.join(arguments)}",
            )
        return done.stdout

    def succeeds(self, *arguments: str) -> bool:
        return self._call(arguments, None).returncode == 0

    def _call(
        self, arguments: tuple[str, ...], text: str | None
    ) -> subprocess.CompletedProcess[str]:
        name, email = _NOBODY
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        settings = [
            "core.autocrlf=false",
            "commit.gpgsign=false",
            "core.hooksPath=/dev/null",
            "gc.auto=0",
        ]
        return subprocess.run(
            ["git", *(word for each in settings for word in ("-c", each)), *arguments],
            cwd=self.folder,
            env={
                **kept,
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_AUTHOR_NAME": name,
                "GIT_AUTHOR_EMAIL": email,
                "GIT_AUTHOR_DATE": _DATE,
                "GIT_COMMITTER_NAME": name,
                "GIT_COMMITTER_EMAIL": email,
                "GIT_COMMITTER_DATE": _DATE,
            },
            input=text,
            check=False,
            capture_output=True,
            text=True,
        )

    def commit(self, message: str) -> str:
        """Commit everything in the working tree; returns the commit's id."""
        self.run("add", "--all")
        self.run("commit", "--quiet", "--allow-empty", "--file", "-", text=message)
        return self.id("HEAD")

    def id(self, revision: str) -> str:
        """The full id of a revision; raises ExportError for an unknown one."""
        try:
            return self.run(
                "rev-parse", "--verify", "--quiet", "--end-of-options", revision
            ).strip()
        except ExportError:
            raise ExportError(
                str(self.folder),
                revision,
                "no such commit there",
                "fetch it, or name a commit that is there with --base",
            ) from None

    def tree(self, revision: str) -> str:
        """The id of a revision's tree."""
        return self.id(f"{revision}^{{tree}}")

    def text(self, revision: str, file: str) -> str | None:
        """A file of a revision, or None where there is none."""
        named = f"{revision}:{file}"
        return self.run("show", named) if self.succeeds("cat-file", "-e", named) else None

    def is_clean(self) -> bool:
        return not self.run("status", "--porcelain")

    def worktree(self, folder: Path, revision: str) -> Repository:
        """Another working tree of the repository at a revision, in place of an earlier one."""
        if folder.exists():
            self.run("worktree", "remove", "--force", str(folder))
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.run("worktree", "prune")
        self.run("worktree", "add", "--quiet", "--detach", str(folder), revision)
        return Repository(folder)
