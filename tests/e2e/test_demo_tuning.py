# SPDX-License-Identifier: Apache-2.0
from demo.tuning import all_options

from kvstrata.kvcr_tuning import TuningConfig


def test_every_option_differs_from_its_default_except_what_the_model_does_not_allow() -> None:
    off, on = TuningConfig(), TuningConfig.parse(all_options())
    same = {name for name in off.__struct_fields__ if getattr(off, name) == getattr(on, name)}
    assert same - {"copy_threads", "huge_pages"} == {"shared_mla"}
