# SPDX-License-Identifier: Apache-2.0
"""The stack model and what the sessions of noxfile.py do with it."""

from . import contracts
from .environment import Environment, Layer, Recipe, SetupError, check_compiler
from .error import StackkitError
from .kvcached_host import KvcachedHost
from .package import Package, disagreements
from .relabel import RelabelError, relabel
from .results import GateResult, Run, SessionResult, closing_line, table
from .stack import HOST, Gate, Pin, PullRequest, Slice, Stack, StackError, Stacks, Upstream, load
from .testrun import run_gates
from .validation import (
    ValidationError,
    gather,
    install,
    install_kvcached,
    run_repository_tests,
    validate,
    validate_host,
    validate_kvcached_host,
)
from .verbs import unpack_verbs
from .wheel import StaleWheelError, Wheel, WheelError
from .workspace import Workspace

__all__ = [
    "HOST",
    "Environment",
    "Gate",
    "GateResult",
    "KvcachedHost",
    "Layer",
    "Package",
    "Pin",
    "PullRequest",
    "Recipe",
    "RelabelError",
    "Run",
    "SessionResult",
    "SetupError",
    "Slice",
    "Stack",
    "StackError",
    "StackkitError",
    "Stacks",
    "StaleWheelError",
    "Upstream",
    "ValidationError",
    "Wheel",
    "WheelError",
    "Workspace",
    "check_compiler",
    "closing_line",
    "contracts",
    "disagreements",
    "gather",
    "install",
    "install_kvcached",
    "load",
    "relabel",
    "run_gates",
    "run_repository_tests",
    "table",
    "unpack_verbs",
    "validate",
    "validate_host",
    "validate_kvcached_host",
]
