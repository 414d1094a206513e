# SPDX-License-Identifier: Apache-2.0
"""What git says of the checkout."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

# Evidence names a package's tree, and is committed after it: writing it changes nothing tested.
_APART = ":(exclude,top)stacks/evidence"


@dataclass(frozen=True)
class Checkout:
    """A working tree; its evidence folder is left out of what counts as a change."""

    root: Path

    def changes(self, folder: str = ".") -> list[str]:
        """The files that differ from HEAD or that git does not know, as `git status` lists them."""
        listed = self._git("status", "--porcelain", "--untracked-files=all", "--", folder, _APART)
        return [] if listed is None else listed.splitlines()

    def commit(self) -> str:
        """The commit that holds exactly the present files; empty if there is none."""
        head = self._git("rev-parse", "--verify", "--quiet", "HEAD")
        return "" if head is None or self.changes() else head.strip()

    def tree(self, folder: str) -> str:
        """The id of the tree of `folder` in HEAD; empty if HEAD has no such folder."""
        found = self._git("rev-parse", "--verify", "--quiet", f"HEAD:{folder}")
        return "" if found is None else found.strip()

    def signer(self) -> str:
        """Who would sign a commit off, as "Name <address>"; empty if git was not told."""
        name, address = (self._git("config", f"user.{key}") for key in ("name", "email"))
        return f"{name.strip()} <{address.strip()}>" if name and address else ""

    def _git(self, *arguments: str) -> str | None:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, check=False, capture_output=True, text=True
        )
        return done.stdout if done.returncode == 0 else None
