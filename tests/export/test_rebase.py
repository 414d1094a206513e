# SPDX-License-Identifier: Apache-2.0
"""A stack on a newer base: what still applies, what moved, and the range-diff."""

import pytest

from stackkit.export import ExportError, build, rebase

from .small import FILES, LABEL_FILES, STORE, Place, label_layer, price_layer


def test_a_base_that_changed_nothing_of_concern_keeps_every_edit(place: Place) -> None:
    slices = [
        place.slice("label", label_layer(), LABEL_FILES),
        place.slice("price", price_layer(), {}),
    ]
    old = build(place.base(place.clone()), slices)
    newer = place.base(place.clone({**FILES, "README.md": "A larger shop.\n"}))
    result = rebase(old, newer, slices)

    assert result.refused == []
    assert not any(fate.target_changed for fate in result.fates)
    assert "6 of 6 edits apply, 0 of them to a target that changed; 0 refused" in result.report()
    assert [line.split()[2] for line in result.range_diff("--no-patch").splitlines()] == ["=", "="]


def test_edits_that_moved_are_told_from_those_whose_target_changed(place: Place) -> None:
    slices = [place.slice("label", label_layer(), LABEL_FILES)]
    old = build(place.base(place.clone()), slices)
    changed = STORE.replace('return "a shelf"', 'return "the shelf"').replace("def put", "def keep")
    newer = place.base(place.clone({**FILES, "shop/store.py": changed}))
    result = rebase(old, newer, slices)

    fates = {(type(fate.edit).__name__, fate.edit.name): fate for fate in result.fates}
    assert not fates["AddElement", "KINDS"].target_changed
    assert fates["AddBranch", "Store.open"].target_changed
    assert not fates["AddBranch", "Store.open"].refusal
    assert len(result.refused) == 3
    assert all("not defined there" in fate.refusal for fate in result.refused)
    report = result.report()
    assert "2 of 5 edits apply, 1 of them to a target that changed; 3 refused" in report
    assert "REFUSED" in report
    assert "1:" in report
    assert "!" in report.splitlines()[-1]


def test_a_lower_layer_that_the_newer_base_has_is_named(place: Place) -> None:
    slices = [place.slice("label", label_layer(), LABEL_FILES)]
    old = build(place.base(place.clone()), slices)
    newer = place.base(place.clone({**FILES, "shop/label/ink.py": "theirs = 1\n"}))
    with pytest.raises(ExportError, match=r"ink.py: is in the base already"):
        rebase(old, newer, slices)
