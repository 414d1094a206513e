# SPDX-License-Identifier: Apache-2.0
"""The part of a package's README that goes upstream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from .error import ExportError

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_MARK = re.compile(r"^<!-- (?:begin|end) \w+ -->\n", re.MULTILINE)


def readme(
    top: str,
    sections: Sequence[str],
    *,
    without: Sequence[str] = (),
    instead: Mapping[str, str] | None = None,
) -> Callable[[str], str]:
    """Some sections of a README below another top.

    Args:
        top: the title and what stands before the first section.
        sections: their headings, in the order that they have upstream.
        without: starts of lines that are left out: each has to be there.
        instead: texts with what stands in their place; each has to be there once.
    """

    def change(text: str) -> str:
        parts = _HEADING.split(_MARK.sub("", text))
        found = dict(zip(parts[1::2], parts[2::2], strict=True))
        for heading in sections:
            if heading not in found:
                raise ExportError("README.md", heading, "no such section", "correct `sections`")
        body = "\n".join(f"## {each}\n\n{found[each].strip()}\n" for each in sections)
        body = f"{top.strip()}\n\n{body}"
        for start in without:
            kept = [line for line in body.splitlines(keepends=True) if not line.startswith(start)]
            if len(kept) == len(body.splitlines()):
                raise ExportError("README.md", start, "no line starts so", "correct `without`")
            body = "".join(kept)
        for old, new in (instead or {}).items():
            if body.count(old) != 1:
                reason = f"is there {body.count(old)} times"
                raise ExportError("README.md", old, reason, "correct `instead`")
            body = body.replace(old, new)
        return body

    return change
