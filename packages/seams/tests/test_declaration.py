# SPDX-License-Identifier: Apache-2.0
"""What cannot be a hook is refused where it is declared; the error keeps its data."""

import pickle
from dataclasses import astuple

import pytest

from kvstrata.seams import Hook, Kind, Pin, Reason, SeamError, Seams

PIN = Pin("pond.flow", "0123456789abcdef")


def around(original: object) -> object:
    return original


@pytest.mark.parametrize("target", ["flow", "pond..flow", "pond.", "pond:flow", "", "pond.1"])
def test_a_target_must_be_a_dotted_name(target: str) -> None:
    with pytest.raises(ValueError, match="must be a dotted name"):
        Pin(target, PIN.fingerprint)


@pytest.mark.parametrize("fingerprint", ["", "0123", "0123456789ABCDEF", "0123456789abcdef0"])
def test_a_fingerprint_must_be_as_recorded_and_the_error_says_how(fingerprint: str) -> None:
    with pytest.raises(ValueError, match=r"python -m kvstrata\.seams record pond\.flow"):
        Pin("pond.flow", fingerprint)


def test_a_class_can_only_replace() -> None:
    assert Hook(Kind.REPLACE, Seams, "Why.", {"1.2": PIN}).function is Seams
    with pytest.raises(ValueError, match="a class can only REPLACE"):
        Hook(Kind.AROUND, Seams, "Why.", {"1.2": PIN})


def test_a_hook_names_a_version_and_seams_have_a_hook() -> None:
    with pytest.raises(ValueError, match="must name a version"):
        Hook(Kind.AROUND, around, "Why.", {})
    with pytest.raises(ValueError, match="declare at least one Hook"):
        Seams("kvstrata-reed", "pond", "REED=1.", ())


def test_the_error_ends_a_process_and_survives_pickling() -> None:
    error = SeamError("kvstrata-reed", "pond.flow", Reason.DRIFTED, "a", "b\nc", "Do d.")
    assert isinstance(error, SystemExit)
    assert not isinstance(error, Exception)
    copy = pickle.loads(pickle.dumps(error))
    assert astuple(copy) == astuple(error)
    assert copy.code == error.code == str(error)
    assert str(error) == (
        "kvstrata-reed cannot hook pond.flow (drifted): expected a; found b c. Do d."
    )
