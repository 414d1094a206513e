# SPDX-License-Identifier: Apache-2.0
"""Slices as pull requests: their files and edits on an upstream's tree, one commit for each."""

from . import patches
from .base import Base, of_clone, of_installed, of_sdist
from .branch import Branch, Commit, Slice, build
from .declared import layer_of, stack_of, tree_of
from .edits import (
    END,
    START,
    AddBranch,
    AddElement,
    AddImport,
    AddParameter,
    DropArgument,
    Edit,
    EditError,
    Insert,
    PassArgument,
    Place,
    Remove,
    after,
    before,
)
from .error import ExportError
from .git import Repository
from .layer import File, Layer, folder
from .names import Names
from .places import Anchor, Assigns, Calls, Imports, Tests
from .rebase import Fate, Rebase, rebase
from .style import Style
from .texts import instead

__all__ = [
    "END",
    "START",
    "AddBranch",
    "AddElement",
    "AddImport",
    "AddParameter",
    "Anchor",
    "Assigns",
    "Base",
    "Branch",
    "Calls",
    "Commit",
    "DropArgument",
    "Edit",
    "EditError",
    "ExportError",
    "Fate",
    "File",
    "Imports",
    "Insert",
    "Layer",
    "Names",
    "PassArgument",
    "Place",
    "Rebase",
    "Remove",
    "Repository",
    "Slice",
    "Style",
    "Tests",
    "after",
    "before",
    "build",
    "folder",
    "instead",
    "layer_of",
    "of_clone",
    "of_installed",
    "of_sdist",
    "patches",
    "rebase",
    "stack_of",
    "tree_of",
]
