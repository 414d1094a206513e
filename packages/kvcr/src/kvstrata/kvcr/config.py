# SPDX-License-Identifier: Apache-2.0
"""Settings of the backend, as written in ``--hicache-storage-backend-extra-config``."""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from .errors import ConfigError

BACKEND_NAME = "kvcr"
"""What ``--hicache-storage-backend`` is set to."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]iB|B|)")

Port = Annotated[int, Meta(ge=1, le=65535)]
Bytes = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Host = Annotated[str, Meta(min_length=1)]


class KvcrConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one server; every rank derives its own ports from them.

    Sizes are bytes, or text with a binary unit such as ``"8GiB"``.
    """

    dram_bytes: Annotated[
        Bytes, Meta(description="DRAM that each rank gives to KVCR for pages.")
    ] = 4 << 30
    bind_host: Annotated[
        Host, Meta(description="Interface on which peers may reach the control port.")
    ] = "127.0.0.1"
    advertise_host: Annotated[
        str, Meta(description="Host name peers use to answer; empty means bind_host.")
    ] = ""
    control_port: Annotated[
        Port, Meta(description="Control port of rank 0; rank r listens on control_port + r.")
    ] = 28500
    nixl_port: Annotated[
        Port, Meta(description="NIXL listen port of rank 0; rank r listens on nixl_port + r.")
    ] = 29500
    trust_request_hints: Annotated[
        bool,
        Meta(description="Follow hints that clients put into sampling_params.custom_params."),
    ] = False
    allowed_peers: Annotated[
        tuple[Host, ...],
        Meta(
            description="Peers that hints may name, as host or host:port; empty means any fit IP."
        ),
    ] = ()
    model_id: Annotated[
        str, Meta(description="Name of the weights; empty means derived from the model's files.")
    ] = ""
    startup_timeout_seconds: Annotated[
        Seconds, Meta(description="How long dram_bytes may take to become resident at start.")
    ] = 300.0
    operation_timeout_seconds: Annotated[
        Seconds, Meta(description="After this long an operation is cancelled.")
    ] = 30.0
    abandon_timeout_seconds: Annotated[
        Seconds, Meta(description="After this long a cancelled operation is given up.")
    ] = 60.0
    peer_probe_timeout_seconds: Annotated[
        Seconds, Meta(description="How long a peer may take to accept a connection, and to greet.")
    ] = 0.25
    peer_restore_mode: Annotated[
        Literal["direct", "staged"],
        Meta(
            description="direct: a peer writes into host pages. staged: it writes into this rank's "
            "DRAM tier, from which host pages are filled, so that no failure of a peer ends the "
            "worker."
        ),
    ] = "direct"
    nixl_progress_thread: Annotated[
        bool,
        Meta(description="Keep NIXL's own progress thread, which spins on one core per rank."),
    ] = False
    tuning: Annotated[
        dict[str, object],
        Meta(description="Options of kvstrata-kvcr-tuning, which has to be installed for them."),
    ] = {}

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> "KvcrConfig":
        """Validate settings; raises ConfigError naming the first wrong one."""
        config = read(cls, settings)
        if config.bind_host == "0.0.0.0" and not config.advertise_host:
            raise ConfigError(
                "advertise_host",
                "",
                "the address at which peers reach this host, while bind_host is every interface",
                "Set advertise_host, or bind_host to that one address.",
            )
        if config.abandon_timeout_seconds < 2 * config.operation_timeout_seconds:
            raise ConfigError(
                "abandon_timeout_seconds",
                config.abandon_timeout_seconds,
                f"at least twice operation_timeout_seconds ({config.operation_timeout_seconds:g})",
                f"Use {2 * config.operation_timeout_seconds:g} or more.",
            )
        return config


def read(struct: type[_Struct], settings: Mapping[str, object], within: str = "") -> _Struct:
    """Settings as a msgspec Struct of them; raises ConfigError naming the first wrong one.

    Args:
        within: the settings' own place in the extra config, such as ``tuning.``.
    """
    values: dict[str, object] = {}
    hints = get_type_hints(struct, include_extras=True)
    for key, value in settings.items():
        if key not in hints:
            raise _unknown(within, key, tuple(hints))
        is_size = key.endswith("_bytes") and isinstance(value, str)
        size = _parse_size(within + key, str(value)) if is_size else value
        try:
            values[key] = msgspec.convert(size, hints[key])
        except msgspec.ValidationError as error:
            raise ConfigError(
                within + key,
                value,
                str(error),
                f"Set {within}{key} in the extra config accordingly.",
            ) from None
    return struct(**values)


def _unknown(within: str, key: str, known: tuple[str, ...]) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=1)
    fix = f"Did you mean {near[0]!r}?" if near else "Remove it."
    return ConfigError(
        "--hicache-storage-backend-extra-config key", within + key, ", ".join(sorted(known)), fix
    )


def _parse_size(setting: str, text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            setting,
            text,
            'bytes, or a number with B, KiB, MiB, GiB or TiB such as "8GiB"',
            "Write the size with a binary unit.",
        )
    return int(float(match[1]) * _UNITS[match[2]])
