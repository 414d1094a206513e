# SPDX-License-Identifier: Apache-2.0
import dataclasses
import hashlib
from typing import Any

import pytest

from kvstrata.kvcr.keys import Namespace, PageKeys, event_hash, namespace_of, page_keys

NAMESPACE = Namespace(
    model="weights",
    dtypes=("torch.bfloat16",),
    layout="page_first",
    page_slots=16,
    component_bytes=(2048, 2048),
    tp_rank=0,
    tp_size=1,
    cp_rank=0,
    cp_size=1,
    pool="kv",
)
PAGE = hashlib.sha256(b"page").hexdigest()
TOP_BIT = "f" * 64


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Namespace)])
def test_every_part_of_a_namespace_makes_another_key(field: str) -> None:
    value = getattr(NAMESPACE, field)
    other_value = value + 1 if isinstance(value, int) else value[:1]
    changes: dict[str, Any] = {field: other_value if other_value != value else ()}
    other = dataclasses.replace(NAMESPACE, **changes)
    assert page_keys([PAGE], NAMESPACE.digest()) != page_keys([PAGE], other.digest())


def test_parts_of_a_namespace_do_not_run_into_each_other() -> None:
    one = dataclasses.replace(NAMESPACE, model="a", dtypes=("b\0c",))
    two = dataclasses.replace(NAMESPACE, model="a\0b", dtypes=("c",))
    assert one.digest() != two.digest()
    one = dataclasses.replace(NAMESPACE, dtypes=("a", "b"))
    two = dataclasses.replace(NAMESPACE, dtypes=("a, b",))
    assert one.digest() != two.digest()


def test_the_same_namespace_gives_the_same_key_everywhere() -> None:
    # Replicas of different releases meet: changing this value makes all their pages misses.
    assert NAMESPACE.digest().hex() == "8c8e476929581602144c9c7a3769d885"


def test_the_whole_page_hash_is_in_the_key() -> None:
    (key,) = page_keys([PAGE], NAMESPACE.digest())
    assert bytes.fromhex(PAGE) in key
    assert len(key) == 32 + 16
    assert namespace_of(key) == NAMESPACE.digest()


@pytest.mark.parametrize("page", [PAGE, TOP_BIT, "0" * 64])
def test_hints_name_a_page_by_sglangs_event_hash_read_as_unsigned(page: str) -> None:
    utils = pytest.importorskip("sglang.srt.mem_cache.utils")
    signed = utils.hash_str_to_int64(page)
    assert event_hash(page_keys([page], NAMESPACE.digest())[0]) == signed % (1 << 64)


def test_kvcr_reads_the_event_hash_off_a_key() -> None:
    (key,) = page_keys([TOP_BIT], NAMESPACE.digest())
    assert PageKeys().decode(PageKeys().encode(key)) == (1 << 64) - 1


def test_a_key_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        PageKeys().encode(7)
