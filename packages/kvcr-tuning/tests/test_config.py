# SPDX-License-Identifier: Apache-2.0
from importlib import metadata
from pathlib import Path

import pytest

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.settings import markdown_table
from kvstrata.kvcr_tuning import TuningConfig
from kvstrata.kvcr_tuning.__main__ import main


@pytest.mark.parametrize(
    ("options", "setting", "fix"),
    [
        ({"combined_oi": True}, "extra-config key", "Did you mean 'combined_io'?"),
        ({"combined_io": "yes"}, "tuning.combined_io", "Set tuning.combined_io"),
        ({"read_batch_pages": 0}, "tuning.read_batch_pages", "Set tuning.read_batch_pages"),
        ({"read_batch_pages": True}, "tuning.read_batch_pages", "Set tuning.read_batch_pages"),
    ],
)
def test_a_wrong_option_is_named_with_its_fix(
    options: dict[str, object], setting: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        TuningConfig.parse(options)
    assert error.value.setting.endswith(setting)
    assert fix in error.value.fix


def readme() -> str:
    """The package's README, from beside the tests or from the installed package."""
    file = Path(__file__).parents[1] / "README.md"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return str(metadata.metadata("kvstrata-kvcr-tuning").get_payload())  # type: ignore[attr-defined]


def test_the_readme_has_the_options_that_the_code_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    table = capsys.readouterr().out
    assert table == markdown_table(TuningConfig)
    assert f"\n{table}<!-- end settings -->" in readme(), (
        "paste the output of: python -m kvstrata.kvcr_tuning settings"
    )
