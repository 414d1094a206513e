# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the small slices; their rows are those of evidence, or say that there is none."""

from __future__ import annotations

import pytest

from stackkit import Checkout as Tree
from stackkit import DescriptionError, check, describe, record
from stackkit.description import MOST_LINES

from .synthetic import Checkout

UPSTREAM = """
[[upstreams]]
id = "sglang"
repository = "https://example.org/sglang"
branch = "main"
release = "0.5.20"
series = "A series"
sign_off = false
"""
REQUEST = """
[slices.pull_request]
title = "The {id} part"
template = "{template}"
status = "planned"
"""
WORDS = """
motivation = '''
Because of
a reason.
'''
changes = ["One thing.", "Another thing."]
limits = ["A limit."]
"""


@pytest.fixture
def offered(validated: Checkout) -> Checkout:
    """Both slices as pull requests to one upstream, at a commit."""
    for name in ("bottom", "top"):
        gate = f'id = "{name}-cpu"\nkind = "cpu"\nsession = "validate-{name}"\nrequired = true\n'
        gate += "min_tests = 1\n"
        request = REQUEST.format(id=name, template="sglang" if name == "top" else "kvcached")
        validated.edit("stacks/synthetic.toml", gate, gate + request)
        validated.edit(
            "stacks/synthetic.toml", f'id = "{name}"\n', f'id = "{name}"\nupstream = "sglang"\n'
        )
        validated.write(f"packages/{name}/upstream/description.toml", WORDS)
    stack = (validated.root / "stacks" / "synthetic.toml").read_text(encoding="utf-8")
    validated.write("stacks/synthetic.toml", stack + UPSTREAM)
    validated.commit()
    return validated


def test_a_description_has_the_authors_words_the_series_and_what_it_is_stacked_on(
    offered: Checkout,
) -> None:
    top, bottom = (describe(offered.workspace, name) for name in ("top", "bottom"))

    assert top.startswith("[A series][2/2] The top part\n")
    assert bottom.startswith("[A series][1/2] The bottom part\n")
    assert "Because of a reason." in top
    assert "- One thing.\n- Another thing.\n" in top
    assert "- Stacked on [A series][1/2] The bottom part; please review" in top
    assert "- Stacked on nothing" in bottom
    assert max(len(text.splitlines()) for text in (top, bottom)) <= MOST_LINES


def test_an_open_predecessor_is_named_by_its_number(offered: Checkout) -> None:
    offered.edit("stacks/synthetic.toml", 'title = "The bottom part"', 'title = "A"\nnumber = 4321')

    assert "- Stacked on #4321; please review" in describe(offered.workspace, "top")


def test_gates_without_evidence_are_rows_that_say_so(offered: Checkout) -> None:
    tree = Tree(offered.root).tree("packages/bottom")[:12]
    lines = describe(offered.workspace, "bottom").splitlines()

    for gate in ("bottom-cpu", "bottom-gpu"):
        row = f"| {gate} | not_run: no evidence at tree {tree} | - | - | {tree} | - |"
        assert row in lines


def test_the_rows_are_those_of_the_evidence(validated: Checkout) -> None:
    validated.write("packages/top/upstream/description.toml", WORDS)
    validated.edit(
        "stacks/synthetic.toml",
        'id = "top"\n',
        'id = "top"\nupstream = "sglang"\n',
    )
    gate = 'session = "validate-top"\nrequired = true\nmin_tests = 1\n'
    request = REQUEST.format(id="top", template="sglang")
    validated.edit("stacks/synthetic.toml", gate, gate + request)
    stack = (validated.root / "stacks" / "synthetic.toml").read_text(encoding="utf-8")
    validated.write("stacks/synthetic.toml", stack + UPSTREAM)
    validated.build("top")
    validated.commit()
    result = validated.validate("top")
    assert result.circumstances is not None
    record(validated.workspace, "top")

    text = describe(validated.workspace, "top")

    tree = Tree(validated.root).tree("packages/top")[:12]
    day = result.circumstances.started.partition("T")[0]
    row = f"| top-cpu | pass | 1/0/0 | {result.circumstances.machine} | {tree} | {day} |"
    assert row in text.splitlines()
    assert "Run again with `python3 -m nox -s validate-top`." in text
    check(validated.workspace, "top", text)
    for old, new in (("1/0/0", "2/0/0"), (tree, "0" * 12), (day, "2020-01-01")):
        with pytest.raises(DescriptionError, match=r"top: not in the evidence: . top-cpu"):
            check(validated.workspace, "top", text.replace(old, new))


def test_an_edited_description_may_differ_in_words_but_in_no_row(offered: Checkout) -> None:
    text = describe(offered.workspace, "bottom")
    row = next(line for line in text.splitlines() if line.startswith("| bottom-gpu"))

    check(offered.workspace, "bottom", text.replace("One thing.", "Something else."))
    with pytest.raises(DescriptionError, match=r"bottom: left out: . bottom-gpu"):
        check(offered.workspace, "bottom", text.replace(row + "\n", ""))
    fabricated = f"{row}\n| bottom-bench | pass | 9/0/0 | a GPU | - | - |"
    with pytest.raises(DescriptionError, match=r"bottom: not in the evidence: . bottom-bench"):
        check(offered.workspace, "bottom", text.replace(row, fabricated))
    with pytest.raises(DescriptionError, match="at most 59"):
        check(offered.workspace, "bottom", text + "more\n" * MOST_LINES)


@pytest.mark.parametrize(
    "claim",
    [
        "All 240 tests are green.",
        "12 passed",
        "It is 3 x faster.",
        "35 % less memory",
        "2.5× faster",
    ],
)
def test_words_that_claim_a_count_or_a_speed_are_refused(offered: Checkout, claim: str) -> None:
    text = describe(offered.workspace, "bottom").replace("One thing.", claim)
    with pytest.raises(DescriptionError, match="a claim beside the evidence"):
        check(offered.workspace, "bottom", text)

    offered.edit("packages/bottom/upstream/description.toml", "One thing.", claim)
    with pytest.raises(DescriptionError, match=r"bottom/upstream/description\.toml: .* a claim"):
        describe(offered.workspace, "bottom")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Because of", "| gate | pass |", "a table row"),
        ("limits =", "limit =", "unknown field `limit`"),
        ('["A limit."]', "[]", "limits"),
        ("Another thing.", "x\\n" * 80, "at most 59; shorten it"),
    ],
    ids=["a row", "an unknown key", "no limit", "too long"],
)
def test_words_that_cannot_be_used_are_refused(
    offered: Checkout, old: str, new: str, reason: str
) -> None:
    offered.edit("packages/bottom/upstream/description.toml", old, new)
    if reason.startswith("at most"):
        offered.edit(
            "packages/bottom/upstream/description.toml",
            'limits = ["A limit."]',
            f"limits = {['A limit.'] * MOST_LINES}",
        )

    with pytest.raises(DescriptionError, match=reason):
        describe(offered.workspace, "bottom")


def test_an_unknown_template_names_the_known_ones(offered: Checkout) -> None:
    offered.edit("stacks/synthetic.toml", 'template = "sglang"', 'template = "other"')

    with pytest.raises(
        DescriptionError, match=r"no template 'other'; there are 'kvcached', 'sglang'"
    ):
        describe(offered.workspace, "top")


def test_a_sign_off_is_given_where_the_upstream_asks_for_one(offered: Checkout) -> None:
    without = describe(offered.workspace, "top", signer="A Person <person@example.org>")
    offered.edit("stacks/synthetic.toml", "sign_off = false", "sign_off = true")

    asked = describe(offered.workspace, "top", signer="A Person <person@example.org>")

    assert "Signed-off-by" not in without
    assert asked.endswith("\n\nSigned-off-by: A Person <person@example.org>\n")
    with pytest.raises(DescriptionError, match=r"sglang asks for a sign-off; set user\.name"):
        describe(offered.workspace, "top")
