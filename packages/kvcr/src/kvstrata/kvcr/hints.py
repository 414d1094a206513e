# SPDX-License-Identifier: Apache-2.0
"""Restore hints: what a request says about where its prefix lies.

A hint is advisory. Whatever is wrong with it, the request is served without it; nothing here
raises. Wire form: the ``kv.fetch`` 1.0 action of the KV hint protocol 0.1, which Dynamo's router
and others produce.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .endpoints import Endpoint, EndpointPolicy
from .rate_limit import RateLimit

logger = logging.getLogger(__name__)

MAX_HINT_CHARACTERS = 256 << 10
"""Largest hint that is looked at, in characters of JSON."""

MAX_ACTIONS = 16
MAX_HASHES = 8192

CUSTOM_PARAM = "kv_hints"
"""Key of ``sampling_params.custom_params`` that carries a hint on SGLang 0.5.20."""


class _Payload(msgspec.Struct, forbid_unknown_fields=True):
    source_control_endpoint: str
    block_hashes: Annotated[list[int], Meta(min_length=1, max_length=MAX_HASHES)]
    mode: Literal["copy"] = "copy"


class _Action(msgspec.Struct):
    action_type: str
    action_version: str
    payload: msgspec.Raw
    action_id: str = ""


class _Envelope(msgspec.Struct):
    protocol_version: Literal["0.1"]
    actions: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_ACTIONS)]
    message_id: str = ""


@dataclass(frozen=True)
class Hint:
    """A source and the pages that it is said to hold, by the first 64 bits of their hash."""

    source: Endpoint
    hashes: frozenset[int]

    def fetch_message(self, hashes: Iterable[int]) -> dict[str, object]:
        """The message that makes KVCR look for these pages at the source."""
        payload = {
            "source_control_endpoint": str(self.source),
            "block_hashes": list(hashes),
            "mode": "copy",
        }
        action = {
            "action_id": "restore",
            "action_type": "kv.fetch",
            "action_version": "1.0",
            "payload": payload,
        }
        return {"protocol_version": "0.1", "message_id": "restore", "actions": [action]}


@dataclass(frozen=True)
class HintPolicy:
    """Which hints this server follows.

    Args:
        trusted: whether hints that came with a request are followed at all.
        endpoints: which sources they may name.
    """

    trusted: bool
    endpoints: EndpointPolicy = field(default_factory=EndpointPolicy)
    _warnings: RateLimit = field(default_factory=lambda: RateLimit(10.0), compare=False)

    def accept(self, raw: object) -> Hint | None:
        """The first action of a raw hint that can be followed, or None; never raises."""
        if raw is None or not self.trusted:
            return None
        hint, problem = self._read(raw)
        if problem and self._warnings.admits():
            logger.warning(
                "kvcr hint ignored, request served locally: %s (%d more not shown)",
                problem,
                self._warnings.suppressed,
            )
            self._warnings.suppressed = 0
        return hint

    def _read(self, raw: object) -> tuple[Hint | None, str]:
        if not isinstance(raw, str):
            return None, f"expected JSON text, got {type(raw).__name__}"
        if len(raw) > MAX_HINT_CHARACTERS:
            return None, f"more than {MAX_HINT_CHARACTERS} characters"
        try:
            envelope = msgspec.json.decode(raw, type=_Envelope)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return None, str(error)
        problem = "no kv.fetch 1.0 action"
        for action in envelope.actions:
            hint, reason = self._read_action(action)
            if hint is not None:
                return hint, ""
            problem = reason or problem
        return None, problem

    def _read_action(self, raw: msgspec.Raw) -> tuple[Hint | None, str]:
        try:
            action = msgspec.json.decode(raw, type=_Action)
            if (action.action_type, action.action_version) != ("kv.fetch", "1.0"):
                return None, ""
            payload = msgspec.json.decode(action.payload, type=_Payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return None, str(error)
        # Not a bound of the type: msgspec's integer bounds end at 63 bits.
        if min(payload.block_hashes) < 0 or max(payload.block_hashes) >= 1 << 64:
            return None, "block_hashes are not unsigned 64-bit integers"
        source = Endpoint.parse(payload.source_control_endpoint)
        if source is None:
            return None, "source_control_endpoint is not tcp://host:port"
        objection = self.endpoints.objection(source)
        if objection:
            return None, objection
        return Hint(source, frozenset(payload.block_hashes)), ""


def hint_in(custom_params: object) -> object:
    """The raw hint among a request's custom parameters, or None."""
    if not isinstance(custom_params, Mapping):
        return None
    return custom_params.get(CUSTOM_PARAM)


_carried: ContextVar[object] = ContextVar("kvstrata_kvcr_hint", default=None)


@contextmanager
def carrying(hint: object) -> Iterator[None]:
    """Make a hint the current one of this thread for the duration of a call."""
    token = _carried.set(hint)
    try:
        yield
    finally:
        _carried.reset(token)


def carried() -> object:
    """The current hint of this thread, or None."""
    return _carried.get()
