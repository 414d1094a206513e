# SPDX-License-Identifier: Apache-2.0
import json
import logging
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstrata.kvcr import hints
from kvstrata.kvcr.endpoints import Endpoint, EndpointPolicy
from kvstrata.kvcr.hints import (
    Hint,
    HintPolicy,
    RequestHint,
    carried,
    carrying,
    keep_hint,
    operation_hint,
    request_hint,
)

SOURCE = "tcp://10.1.2.3:28500"
TRUSTING = HintPolicy(trusted=True)


def fetch(**payload: object) -> dict[str, Any]:
    return {
        "action_id": "a",
        "action_type": "kv.fetch",
        "action_version": "1.0",
        "payload": {"source_control_endpoint": SOURCE, "block_hashes": [1, 2]} | payload,
    }


def envelope(*actions: object, **fields: object) -> str:
    return json.dumps(
        {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)} | fields
    )


def test_a_good_hint_names_its_source_and_pages() -> None:
    hint = TRUSTING.accept(envelope(fetch(mode="copy")))
    assert hint == Hint(Endpoint("10.1.2.3", 28500), frozenset({1, 2}))


def test_a_hash_with_the_top_bit_set_is_accepted() -> None:
    top = (1 << 64) - 1
    hint = TRUSTING.accept(envelope(fetch(block_hashes=[top])))
    assert hint is not None
    assert hint.hashes == {top}


def test_the_first_action_that_can_be_followed_wins() -> None:
    other = fetch() | {"action_type": "kv.evict"}
    newer = fetch() | {"action_version": "2.0"}
    broken = fetch(block_hashes=[-1])
    second = fetch(source_control_endpoint="tcp://10.9.9.9:28500")
    hint = TRUSTING.accept(envelope(other, newer, broken, 7, second, fetch()))
    assert hint is not None
    assert hint.source == Endpoint("10.9.9.9", 28500)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "null",
        "[]",
        "{}",
        "{",
        "\ud800",
        "[" * 100_000,
        7,
        b"{}",
        {"actions": []},
        envelope(),
        envelope(fetch(), protocol_version="0.2"),
        envelope(*[fetch()] * (hints.MAX_ACTIONS + 1)),
        envelope(fetch() | {"action_version": "1.1"}),
        envelope(fetch() | {"payload": None}),
        envelope(fetch(block_hashes=[])),
        envelope(fetch(block_hashes=[1 << 64])),
        envelope(fetch(block_hashes=[-1])),
        envelope(fetch(block_hashes=[True])),
        envelope(fetch(block_hashes=["1"])),
        envelope(fetch(block_hashes=[1.5])),
        envelope(fetch(block_hashes=[10**400])),
        envelope(fetch(block_hashes=list(range(hints.MAX_HASHES + 1)))),
        envelope(fetch(mode="move")),
        envelope(fetch(no_retain=True)),
        envelope(fetch(source_control_endpoint=None)),
        envelope(fetch(), padding="x" * hints.MAX_HINT_CHARACTERS),
    ],
    ids=lambda raw: repr(raw)[:40],
)
def test_a_hostile_hint_is_no_hint_and_no_exception(raw: object) -> None:
    assert HintPolicy(trusted=True).accept(raw) is None


def test_a_source_that_is_not_a_plain_tcp_endpoint_is_no_source() -> None:
    for endpoint in ("", "10.1.2.3:28500", "tcp://10.1.2.3", "ipc:///tmp/socket"):
        assert TRUSTING.accept(envelope(fetch(source_control_endpoint=endpoint))) is None


class NativeAction(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of SGLang's own action, for releases that have none."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any] = {}


class NativeEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of SGLang's own envelope."""

    protocol_version: str
    message_id: str
    actions: list[NativeAction] = []


def native(text: str) -> NativeEnvelope:
    return msgspec.json.decode(text, type=NativeEnvelope)


def test_the_shape_of_sglangs_envelope_is_known() -> None:
    theirs = pytest.importorskip("sglang.srt.managers.kv_hints")
    ours = msgspec.inspect.type_info(NativeEnvelope), msgspec.inspect.type_info(NativeAction)
    real = (
        msgspec.inspect.type_info(theirs.KvHintsEnvelope),
        msgspec.inspect.type_info(theirs.KvHintAction),
    )
    for own, real_one in zip(ours, real, strict=True):
        assert isinstance(own, msgspec.inspect.StructType)
        assert isinstance(real_one, msgspec.inspect.StructType)
        assert [f.name for f in own.fields] == [f.name for f in real_one.fields]
    hint = TRUSTING.accept(theirs.decode_kv_hints_envelope(json.loads(envelope(fetch()))))
    assert hint == Hint(Endpoint("10.1.2.3", 28500), frozenset({1, 2}))


def test_sglangs_own_envelope_is_read_like_the_text_that_it_stands_for() -> None:
    top = (1 << 64) - 1
    for text in (
        envelope(fetch(block_hashes=[top])),
        envelope(fetch() | {"action_type": "kv.evict"}, fetch(block_hashes=[3])),
        envelope(fetch(mode="move")),
        envelope(fetch(), protocol_version="0.2"),
        envelope(fetch(source_control_endpoint="http://10.1.2.3:1")),
        envelope(*[fetch()] * (hints.MAX_ACTIONS + 1)),
        envelope(fetch(block_hashes=list(range(hints.MAX_HASHES + 1)))),
        envelope(fetch(), message_id="x" * hints.MAX_HINT_CHARACTERS),
    ):
        assert HintPolicy(trusted=True).accept(native(text)) == TRUSTING.accept(text)
    assert TRUSTING.accept(native(envelope(fetch()))) is not None
    assert HintPolicy(trusted=False).accept(native(envelope(fetch()))) is None


@pytest.mark.parametrize(
    "payload",
    [
        {"block_hashes": object()},
        {"block_hashes": [1 << 70], "source_control_endpoint": SOURCE},
        {"block_hashes": [1], "source_control_endpoint": "\ud800"},
        {"block_hashes": [float("nan")], "source_control_endpoint": SOURCE},
        {("a", "b"): 1},
        {1: 1},
    ],
    ids=["object", "number over 64 bits", "lone surrogate", "nan", "tuple as key", "int as key"],
)
def test_an_envelope_that_is_no_json_is_no_hint_and_no_exception(payload: Any) -> None:
    action = NativeAction(
        action_id="a", action_type="kv.fetch", action_version="1.0", payload=payload
    )
    made = NativeEnvelope(protocol_version="0.1", message_id="m", actions=[action])
    assert HintPolicy(trusted=True).accept(made) is None


def test_an_endless_envelope_is_no_hint_and_no_exception() -> None:
    payload: dict[str, Any] = {}
    payload["block_hashes"] = payload
    action = NativeAction(
        action_id="a", action_type="kv.fetch", action_version="1.0", payload=payload
    )
    made = NativeEnvelope(protocol_version="0.1", message_id="m", actions=[action])
    assert HintPolicy(trusted=True).accept(made) is None


@settings(deadline=None)
@given(st.text() | st.binary() | st.integers() | st.none())
def test_no_value_makes_the_policy_raise(raw: object) -> None:
    assert HintPolicy(trusted=True).accept(raw) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    key=st.sampled_from(["action_type", "action_version", "payload", "block_hashes", "mode"]),
    value=_json,
)
def test_a_hint_with_any_one_field_replaced_is_followed_whole_or_not_at_all(
    key: str, value: object
) -> None:
    action = fetch()
    (action["payload"] if key in ("block_hashes", "mode") else action)[key] = value
    text = envelope(action)
    hint = HintPolicy(trusted=True).accept(text)
    assert hint is None or hint.source == Endpoint("10.1.2.3", 28500)
    with suppress(msgspec.MsgspecError):  # SGLang refuses such a request
        assert HintPolicy(trusted=True).accept(native(text)) == hint


def test_without_the_trust_switch_no_hint_is_followed() -> None:
    assert HintPolicy(trusted=False).accept(envelope(fetch())) is None


@pytest.mark.parametrize(
    ("allowed", "followed"), [((), True), (("10.1.2.3",), True), (("10.1.2.3:1",), False)]
)
def test_a_hint_is_followed_only_to_an_endpoint_that_it_may_name(
    allowed: tuple[str, ...], followed: bool
) -> None:
    policy = HintPolicy(trusted=True, endpoints=EndpointPolicy(allowed))
    assert (policy.accept(envelope(fetch())) is not None) is followed


def test_a_source_that_must_not_be_asked_is_named_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metadata = fetch(source_control_endpoint="tcp://169.254.169.254:8080")
    assert HintPolicy(trusted=True).accept(envelope(metadata)) is None
    assert "tcp://169.254.169.254:8080 is a link-local or cloud service address" in caplog.text


def test_an_action_that_must_not_be_followed_leaves_the_next_one() -> None:
    metadata = fetch(source_control_endpoint="tcp://169.254.169.254:8080")
    hint = HintPolicy(trusted=True).accept(envelope(metadata, fetch()))
    assert hint is not None
    assert hint.source == Endpoint("10.1.2.3", 28500)


def test_bad_hints_warn_once_per_interval_and_count_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = HintPolicy(trusted=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            policy.accept("{")
    assert len(caplog.records) == 1
    assert "served locally" in caplog.text


def test_the_message_for_kvcr_holds_only_the_pages_asked_for() -> None:
    kvcr = pytest.importorskip("kvcr.hint_parser")
    hint = Hint(Endpoint("h", 1), frozenset({1, 2, 3}))
    parsed = kvcr._KVFetchHint.from_hint(hint.fetch_message([2]))
    assert parsed.source_endpoint == "tcp://h:1"
    assert parsed.block_hashes == {2}


def request(custom_params: object = None, **fields: object) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=custom_params), **fields)


@pytest.mark.parametrize("params", [None, {}, [], "kv_hints", {"kv_hint": "x"}, {"kv_hints": None}])
def test_a_request_without_a_hint_has_none(params: object) -> None:
    assert request_hint(request(params)) is None


class Reader:
    """Counts what it reads."""

    def __init__(self) -> None:
        self.read: list[object] = []

    def accept_hint(self, raw: object) -> Hint | None:
        self.read.append(raw)
        return TRUSTING.accept(raw)


def test_the_native_field_of_a_request_wins_over_its_custom_parameters() -> None:
    reader = Reader()
    native = request_hint(request({"kv_hints": "custom"}, kv_hints="native"))
    custom = request_hint(request({"kv_hints": "custom"}, kv_hints=None))
    assert native is not None
    assert custom is not None
    native.read_by(reader)
    custom.read_by(reader)
    assert reader.read == ["native", "custom"]


def test_a_hint_is_read_once_however_often_its_request_is_prefetched() -> None:
    reader, hinted = Reader(), request({"kv_hints": envelope(fetch())})
    for _ in range(3):  # a prefetch, its retry, another after a device hit was lost
        hint = request_hint(hinted)
        assert hint is not None
        operation = SimpleNamespace()
        keep_hint(operation, hint)
        read = operation_hint(operation, reader)
        assert read is not None
        assert read.hashes == {1, 2}
    assert len(reader.read) == 1


def test_another_backend_reads_a_hint_by_its_own_rules() -> None:
    hint = RequestHint(envelope(fetch()))
    assert hint.read_by(Reader()) is not None
    refusing = SimpleNamespace(accept_hint=HintPolicy(trusted=False).accept)
    assert hint.read_by(refusing) is None


def test_an_operation_of_a_request_without_a_hint_reads_nothing() -> None:
    reader = Reader()
    assert operation_hint(SimpleNamespace(), reader) is None
    assert reader.read == []


def test_a_carried_hint_ends_with_the_call_and_never_reaches_another_thread() -> None:
    seen: list[object] = []
    with carrying("outer"):
        with carrying(None):
            assert carried() is None
        thread = threading.Thread(target=lambda: seen.append(carried()))
        thread.start()
        thread.join()
        assert carried() == "outer"
    assert carried() is None
    assert seen == [None]


def test_a_carried_hint_ends_with_an_exception_too() -> None:
    with pytest.raises(RuntimeError), carrying("hint"):
        raise RuntimeError
    assert carried() is None
