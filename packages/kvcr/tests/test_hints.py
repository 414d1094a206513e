# SPDX-License-Identifier: Apache-2.0
import json
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.kvcr import hints
from kvstrata.kvcr.endpoints import Endpoint, EndpointPolicy
from kvstrata.kvcr.hints import Hint, HintPolicy, carried, carrying, hint_in

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


@given(st.text() | st.binary() | st.integers() | st.none())
def test_no_value_makes_the_policy_raise(raw: object) -> None:
    assert HintPolicy(trusted=True).accept(raw) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    key=st.sampled_from(["action_type", "action_version", "payload", "block_hashes", "mode"]),
    value=_json,
)
def test_a_hint_with_any_one_field_replaced_is_followed_whole_or_not_at_all(
    key: str, value: object
) -> None:
    action = fetch()
    (action["payload"] if key in ("block_hashes", "mode") else action)[key] = value
    hint = HintPolicy(trusted=True).accept(envelope(action))
    assert hint is None or hint.source == Endpoint("10.1.2.3", 28500)


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


@pytest.mark.parametrize("params", [None, {}, [], "kv_hints", {"kv_hint": "x"}])
def test_a_request_without_a_hint_has_none(params: object) -> None:
    assert hint_in(params) is None


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
