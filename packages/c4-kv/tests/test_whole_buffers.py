# SPDX-License-Identifier: Apache-2.0
"""Who takes the buffers of pools as a whole gets those of native pools alone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.errors import SetupError
from kvstrata_host import vmm
from kvstrata_host.leases.model import make_pool

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]


def hicache(pool: Any) -> object:
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler

    return assembler.build_deepseek_v4_hicache_stack(
        params=SimpleNamespace(page_size=256),
        kvcache=pool,
        load_cache_event=None,
        storage_backend=None,
    )


def linker(pool: Any) -> object:
    from sglang.srt.mem_cache.hybrid_cache import linker_pool_assembler as assembler

    return assembler._build_deepseek_v4_device_pool_group(pool, 256)


READERS: dict[str, tuple[Callable[[Any], object], str]] = {
    "PD transfer of compressed pages": (lambda pool: pool.get_contiguous_buf_infos(), "of c4"),
    "PD transfer of windows": (lambda pool: pool.get_state_buf_infos(), "of swa"),
    "HiCache": (hicache, "of swa, c4"),
    "cache linker": (linker, "of swa, c4"),
}


@pytest.mark.parametrize(("read", "names"), READERS.values(), ids=READERS)
def test_a_reader_of_managed_buffers_is_refused_and_told_the_way_out(
    read: Callable[[Any], object], names: str
) -> None:
    pool = make_pool()
    calls = vmm.state().calls

    with pytest.raises(SetupError, match=f"buffers {names}.*ENABLE_KVCACHED=0"):
        read(pool)

    assert vmm.state().calls == calls
    pools = managed_pools_of(pool)
    assert pools is not None
    pools.close()


def test_native_pools_are_handed_out_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    pool = make_pool()

    pointers, _, items = pool.get_contiguous_buf_infos()
    states, _, _ = pool.get_state_buf_infos()

    assert pointers[0] == pool.c4_kv_pool.kv_buffer[0].data_ptr()
    assert items == [37_440, 37_440, 8_448, 8_448, 1_728]
    assert states[0] == pool.swa_kv_pool.kv_buffer[0].data_ptr()
    assert linker(pool) is not None
