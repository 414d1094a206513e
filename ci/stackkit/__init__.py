# SPDX-License-Identifier: Apache-2.0
"""The stack model and what the sessions of noxfile.py do with it."""

from . import contracts
from .applied import Applied, check_tree, validate_applied
from .checkout import Checkout
from .description import DescriptionError, check, describe
from .environment import Environment, Layer, Recipe, SetupError, check_compiler
from .error import StackkitError
from .evidence import Evidence, EvidenceError, record
from .kvcached_host import KvcachedHost
from .package import Package, disagreements
from .relabel import RelabelError, relabel
from .results import GateResult, Run, SessionResult, closing_line, table
from .stack import (
    HOST,
    Combination,
    Gate,
    Pin,
    PullRequest,
    Slice,
    Stack,
    StackError,
    Stacks,
    Upstream,
    load,
)
from .standing import Standing, evidence_table, standings
from .testrun import run_gates
from .validation import (
    ValidationError,
    gather,
    install,
    install_kvcached,
    run_repository_tests,
    validate,
    validate_combination,
    validate_host,
    validate_kvcached_host,
)
from .verbs import unpack_verbs
from .wheel import StaleWheelError, Wheel, WheelError
from .workspace import Workspace

__all__ = [
    "HOST",
    "Applied",
    "Checkout",
    "Combination",
    "DescriptionError",
    "Environment",
    "Evidence",
    "EvidenceError",
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
    "Standing",
    "Upstream",
    "ValidationError",
    "Wheel",
    "WheelError",
    "Workspace",
    "check",
    "check_compiler",
    "check_tree",
    "closing_line",
    "contracts",
    "describe",
    "disagreements",
    "evidence_table",
    "gather",
    "install",
    "install_kvcached",
    "load",
    "record",
    "relabel",
    "run_gates",
    "run_repository_tests",
    "standings",
    "table",
    "unpack_verbs",
    "validate",
    "validate_applied",
    "validate_combination",
    "validate_host",
    "validate_kvcached_host",
]
