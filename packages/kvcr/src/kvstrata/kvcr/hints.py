# SPDX-License-Identifier: Apache-2.0
"""Restore hints: what a request says about where its prefix lies.

A hint is advisory. Whatever is wrong with it, the request is served without it; nothing here
raises. Wire form: the ``kv.fetch`` 1.0 action of the KV hint protocol 0.1, which Dynamo's router
and others produce.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from .endpoints import Endpoint, EndpointPolicy
from .rate_limit import RateLimit

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

MAX_HINT_CHARACTERS = 256 << 10
"""Largest hint that is looked at, in characters of JSON."""

MAX_ACTIONS = 16
MAX_HASHES = 8192

FIELD = "kv_hints"
"""Where a request has its hint: a field of SGLang 0.5.21, else a key of ``custom_params``."""


class _Payload(msgspec.Struct, forbid_unknown_fields=True):
    source_control_endpoint: str
    block_hashes: Annotated[list[int], Meta(min_length=1, max_length=MAX_HASHES)]
    mode: Literal["copy"] = "copy"


class _Fetch(msgspec.Struct):
    action_type: Literal["kv.fetch"]
    action_version: Literal["1.0"]
    payload: _Payload
    action_id: str = ""


_ActionT = TypeVar("_ActionT")


class _Envelope(msgspec.Struct, Generic[_ActionT]):
    protocol_version: Literal["0.1"]
    actions: Annotated[list[_ActionT], Meta(min_length=1, max_length=MAX_ACTIONS)]
    message_id: str = ""


_FETCHES = msgspec.json.Decoder(_Envelope[_Fetch])
_MIXED = msgspec.json.Decoder(_Envelope[msgspec.Raw])
_FETCH = msgspec.json.Decoder(_Fetch)


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
        try:
            # SGLang's own envelope is checked as the text that it stands for: one set of rules.
            text = msgspec.json.encode(raw) if isinstance(raw, msgspec.Struct) else raw
            if not isinstance(text, (str, bytes)) or isinstance(raw, bytes):
                return None, f"expected JSON text or an envelope, got {type(raw).__name__}"
            if len(text) > MAX_HINT_CHARACTERS:
                return None, f"more than {MAX_HINT_CHARACTERS} characters"
            actions = _actions(text)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return None, str(error)
        problem = ""
        for action in actions:
            hint, problem = (None, action) if isinstance(action, str) else self._follow(action)
            if hint is not None:
                return hint, ""
        return None, problem

    def _follow(self, action: _Fetch) -> tuple[Hint | None, str]:
        payload = action.payload
        try:
            # Not a bound of the type: msgspec's integer bounds end at 63 bits.
            array("Q", payload.block_hashes)
        except OverflowError:
            return None, "block_hashes are not unsigned 64-bit integers"
        source = Endpoint.parse(payload.source_control_endpoint)
        if source is None:
            return None, "source_control_endpoint is not tcp://host:port"
        objection = self.endpoints.objection(source)
        if objection:
            return None, objection
        return Hint(source, frozenset(payload.block_hashes)), ""


def _actions(text: str | bytes) -> "Sequence[_Fetch | str]":
    """Each action of a hint, or what is wrong with it; raises ValueError for a malformed hint.

    The usual hint has only actions that are followed here and is read in one pass: thousands of
    hashes take long.
    """
    try:
        return _FETCHES.decode(text).actions
    except msgspec.ValidationError:
        return [_fetch(action) for action in _MIXED.decode(text).actions]


def _fetch(action: msgspec.Raw) -> _Fetch | str:
    try:
        return _FETCH.decode(action)
    except (ValueError, RecursionError) as error:
        return str(error)


class HintReader(Protocol):
    """What makes a hint of a raw one: `HintPolicy.accept` of a store."""

    def accept_hint(self, raw: object) -> Hint | None:
        """The hint that can be followed, or None; never raises."""


class RequestHint:
    """The hint of one request, read when it is first needed and then kept.

    It is made on the scheduler thread and read on a storage thread: reading thousands of hashes
    takes longer than the scheduler has.
    """

    def __init__(self, raw: object) -> None:
        self._raw = raw
        self._read: tuple[HintReader, Hint | None] | None = None

    def read_by(self, reader: HintReader) -> Hint | None:
        """What `reader` makes of it; another reader, as after a new attachment, reads anew."""
        read = self._read
        if read is None or read[0] is not reader:
            read = self._read = (reader, reader.accept_hint(self._raw))
        return read[1]


_KEPT = "kvstrata_kvcr_hint"


def request_hint(request: "Req") -> RequestHint | None:
    """The hint that came with a request: the same one at each of its prefetches."""
    hint = kept_hint(request)
    if hint is None:
        raw = getattr(request, FIELD, None)
        params = request.sampling_params.custom_params
        if raw is None and isinstance(params, Mapping):
            raw = params.get(FIELD)
        if raw is not None:
            hint = RequestHint(raw)
            keep_hint(request, hint)
    return hint


def keep_hint(owner: object, hint: object) -> None:
    """Attach a hint to a request or an operation of SGLang."""
    setattr(owner, _KEPT, hint)


def kept_hint(owner: object) -> RequestHint | None:
    """The hint attached to a request or an operation of SGLang, or None."""
    hint = getattr(owner, _KEPT, None)
    return hint if isinstance(hint, RequestHint) else None


def operation_hint(operation: object, reader: HintReader) -> Hint | None:
    """The hint of the request that an operation works for, read."""
    hint = kept_hint(operation)
    return hint.read_by(reader) if hint is not None else None


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
