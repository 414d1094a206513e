# SPDX-License-Identifier: Apache-2.0
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from kvstrata.kvcr import KvcrConfig
from kvstrata.kvcr.__main__ import main
from kvstrata.kvcr.settings import markdown_table, settings_of


class Example(msgspec.Struct):
    cache_bytes: Annotated[int, msgspec.Meta(ge=1), msgspec.Meta(description="Room for pages.")] = (
        1536 << 20
    )
    share: Annotated[float, msgspec.Meta(gt=0, le=1, description="Of it all.")] = 0.5
    mode: Annotated[Literal["fast", "safe"], msgspec.Meta(description="How.")] = "safe"
    names: Annotated[tuple[str, ...], msgspec.Meta(description="Which.")] = ()


def test_types_bounds_and_defaults_are_said_in_words() -> None:
    rows = [(s.name, s.type, s.default, s.meaning) for s in settings_of(Example)]
    assert rows == [
        ("cache_bytes", "size", "1536MiB", "Room for pages."),
        ("share", "number, above 0, up to 1", "0.5", "Of it all."),
        ("mode", "fast or safe", "safe", "How."),
        ("names", "list of text", "", "Which."),
    ]


def test_a_setting_without_a_description_is_an_error() -> None:
    class Bare(msgspec.Struct):
        port: int = 1

    with pytest.raises(ValueError, match=r"Bare\.port has no description"):
        list(settings_of(Bare))


def readme() -> str:
    """The package's README, from beside the tests or from the installed package."""
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return str(metadata.metadata("kvstrata-kvcr").get_payload())  # type: ignore[attr-defined]


def test_the_readme_has_the_settings_that_the_code_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    table = capsys.readouterr().out
    assert table == markdown_table(KvcrConfig)
    assert f"\n{table}<!-- end settings -->" in readme(), (
        "paste the output of: python -m kvstrata.kvcr settings"
    )
