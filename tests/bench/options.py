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

Tuning = Mapping[str, Json]

_ON: Tuning = {"read_batch_pages": 1024, "copy_threads": 1}
"""What an option is set to that is no switch: something else than its default."""

_PARTNERS: Mapping[str, Tuning] = {"copy_threads": {"copy_restores": True}}
"""Options that say something about another one, which has to be on."""

DIAGNOSTICS = frozenset({"stage_metrics", "verify_bytes"})
"""Options that cost something and make nothing faster."""

ELSEWHERE: Mapping[str, str] = {
    "shared_mla": "it needs replicated KV and several ranks",
}
"""Options that say nothing on one rank with KV heads of its own, and why."""


class OptionError(RuntimeError):
    """An option that nobody has said how to turn on."""


def alone() -> dict[str, Tuning]:
    """For each option that can be measured on one rank, the settings that turn it on.

    Empty where kvstrata-kvcr-tuning is not installed. Raises OptionError for an option that is
    neither a switch nor named here.
    """
    try:
        from kvstrata.kvcr_tuning import TuningConfig
    except ImportError:
        return {}
    described = msgspec.inspect.type_info(TuningConfig)
    if not isinstance(described, msgspec.inspect.StructType):
        raise OptionError(f"{TuningConfig.__name__} is not a msgspec Struct")
    return {
        field.encode_name: {
            **_PARTNERS.get(field.encode_name, {}),
            field.encode_name: value_when_on(field),
        }
        for field in described.fields
        if field.encode_name not in ELSEWHERE
    }


def together() -> Tuning:
    """Every option of `alone` on, with what says something about another one at its default."""
    return {name: found[name] for name, found in alone().items() if name not in _PARTNERS}


def performance() -> Tuning:
    """What is to make KVCR faster: `together` without the diagnostics."""
    return {name: value for name, value in together().items() if name not in DIAGNOSTICS}


def value_when_on(field: "Field") -> Json:
    """What turns an option on; raises OptionError if that is not known."""
    if field.encode_name in _ON:
        return _ON[field.encode_name]
    if field.default is False:
        return True
    raise OptionError(
        f"tuning.{field.encode_name} is no switch: say in {__name__}.py what turns it on"
    )
