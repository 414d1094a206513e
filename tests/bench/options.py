# SPDX-License-Identifier: Apache-2.0
"""The options of kvstrata-kvcr-tuning, as they are measured: read from its own type.

An option that comes later is measured as well, or the benchmarks say that they do not know how.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kvstrata_host.spec import Json

if TYPE_CHECKING:
    from msgspec.inspect import Field

_ON: Mapping[str, Json] = {"read_batch_pages": 1024, "copy_threads": 2}
"""What an option is set to that is no switch."""

ELSEWHERE: Mapping[str, str] = {
    "shared_mla": "it needs replicated KV and several ranks",
}
"""Options that say nothing on one rank with KV heads of its own, and why."""


class OptionError(RuntimeError):
    """An option that nobody has said how to turn on."""


def known() -> dict[str, Json]:
    """Each option that can be measured on one rank, with its value when on; none if not installed.

    Raises OptionError for one that is neither a switch nor named here.
    """
    try:
        from kvstrata.kvcr_tuning import TuningConfig
    except ImportError:
        return {}
    fields = msgspec.inspect.type_info(TuningConfig)
    if not isinstance(fields, msgspec.inspect.StructType):
        raise OptionError(f"{TuningConfig.__name__} is not a msgspec Struct")
    return {
        field.encode_name: value_when_on(field)
        for field in fields.fields
        if field.encode_name not in ELSEWHERE
    }


def value_when_on(field: "Field") -> Json:
    """What turns an option on; raises OptionError if that is not known."""
    if field.encode_name in _ON:
        return _ON[field.encode_name]
    if field.default is False:
        return True
    raise OptionError(
        f"tuning.{field.encode_name} is no switch: say in {__name__}.py what turns it on"
    )
