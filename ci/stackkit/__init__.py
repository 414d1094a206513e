# SPDX-License-Identifier: Apache-2.0
"""The stack model and what the sessions of noxfile.py do with it."""

from . import contracts
from .environment import Environment, Layer, Recipe, SetupError, check_compiler
from .error import StackkitError
from .package import Package, disagreements
from .results import GateResult, Run, SessionResult, closing_line, table
from .stack import HOST, Gate, Pin, PullRequest, Slice, Stack, StackError, Stacks, Upstream, load
from .testrun import run_gates
from .validation import (
    ValidationError,
    gather,
    install,
    run_repository_tests,
    validate,
    validate_host,
)
from .wheel import StaleWheelError, Wheel, WheelError
from .workspace import Workspace

__all__ = [
    "HOST",
    "Environment",
    "Gate",
    "GateResult",
    "Layer",
    "Package",
    "Pin",
    "PullRequest",
    "Recipe",
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
    "load",
    "run_gates",
    "run_repository_tests",
    "table",
    "validate",
    "validate_host",
]
