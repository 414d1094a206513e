# SPDX-License-Identifier: Apache-2.0
"""The `transfer_kv_*` copies between device and host pools, in plain torch.

Names and keyword arguments are those with which SGLang's host pools call the compiled kernels:

- `_lf_pf`: layer-first device buffers to a page-first host pool; `_pf_lf`: the way back;
- no layout in the name: layer-first on both sides;
- `direct`: pools are given as tensors, and a page is copied as one; otherwise rows are addressed
  through base pointers and byte sizes.

Every copy moves bytes, so it works for each dtype. Indices name tokens (or rows, where a pool keeps
one row per page). Wrong counts and pages that are not whole are a ValueError; nothing is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

_WORD = torch.int64


def _copy_rows(
    dst: torch.Tensor, dst_rows: torch.Tensor, src: torch.Tensor, src_rows: torch.Tensor
) -> None:
    """Copy rows between two byte matrices of one width."""
    _scatter(dst, dst_rows, _gather(src, src_rows))


def _gather(src: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a byte matrix, side by side; moved as whole words where the matrix allows it."""
    if _is_wordwise(src):
        return src.view(_WORD).index_select(0, rows).view(torch.uint8)
    return src.index_select(0, rows)


def _scatter(dst: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    if _is_wordwise(dst) and _is_wordwise(values):
        dst, values = dst.view(_WORD), values.view(_WORD)
    dst.index_copy_(0, rows, values)


def _is_wordwise(rows: torch.Tensor) -> bool:
    sizes = (rows.shape[1], rows.stride(0), rows.storage_offset(), rows.data_ptr())
    return all(size % _WORD.itemsize == 0 for size in sizes)


def _rows(buffer: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """The memory of a dense buffer as bytes, [rows, row_bytes]."""
    return buffer.view(torch.uint8).view(-1, row_bytes)


def _rows_at(address: int, rows: int, row_bytes: int) -> torch.Tensor:
    """The memory at an address as bytes, [rows, row_bytes]; the caller keeps it alive."""
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)


def _paired(
    src_indices: torch.Tensor, dst_indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if src_indices.numel() != dst_indices.numel():
        raise ValueError(
            f"src_indices has {src_indices.numel()} entries, dst_indices {dst_indices.numel()}: "
            "a copy needs one target per source"
        )
    return src_indices.to(torch.int64), dst_indices.to(torch.int64)


def _pages(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    """The page number of each run of page_size token indices, which must be one whole page."""
    if indices.numel() % page_size:
        raise ValueError(
            f"{indices.numel()} token indices are not whole pages of page_size {page_size}"
        )
    by_page = indices.to(torch.int64).view(-1, page_size)
    first = by_page[:, :1]
    if not bool(((first % page_size == 0) & (by_page == first + torch.arange(page_size))).all()):
        raise ValueError(f"token indices are not page-aligned runs of page_size {page_size}")
    return first.flatten() // page_size


def _copy_tables(
    src_layers: torch.Tensor,
    dst_layers: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    if not src_rows.numel():
        return
    src_count, dst_count = int(src_rows.max()) + 1, int(dst_rows.max()) + 1
    for src, dst in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        _copy_rows(
            _rows_at(dst, dst_count, item_size),
            dst_rows,
            _rows_at(src, src_count, item_size),
            src_rows,
        )


def _check_tables(num_layers: int, *tables: torch.Tensor) -> None:
    for table in tables:
        if table.numel() != num_layers:
            raise ValueError(
                f"pointer table has {table.numel()} layers, num_layers is {num_layers}"
            )


def _check_row(item_size: int, num_layers: int, layout_dim: int) -> None:
    if item_size * num_layers > layout_dim:
        raise ValueError(
            f"{num_layers} layers of item_size {item_size} do not fit a token of {layout_dim} bytes"
        )


def _check_sides(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources cannot be copied to {len(targets)} targets")


def transfer_kv_per_layer_mla(
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    _copy_rows(_rows(dst, item_size), dst_rows, _rows(src, item_size), src_rows)


def transfer_kv_per_layer(
    src_k: torch.Tensor,
    dst_k: torch.Tensor,
    src_v: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
) -> None:
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices, item_size)


def transfer_kv_all_layer_mla(
    src_layers: torch.Tensor,
    dst_layers: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    num_layers: int,
) -> None:
    _check_tables(num_layers, src_layers, dst_layers)
    _copy_tables(src_layers, dst_layers, src_indices, dst_indices, item_size)


def transfer_kv_all_layer(
    src_k_layers: torch.Tensor,
    dst_k_layers: torch.Tensor,
    src_v_layers: torch.Tensor,
    dst_v_layers: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    num_layers: int,
) -> None:
    _check_tables(num_layers, src_k_layers, dst_k_layers, src_v_layers, dst_v_layers)
    for src, dst in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        _copy_tables(src, dst, src_indices, dst_indices, item_size)


def transfer_kv_per_layer_mla_pf_lf(
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    layer = _rows(src, src_layout_dim).narrow(1, layer_id * item_size, item_size)
    _copy_rows(_rows(dst, item_size), dst_rows, layer, src_rows)


def transfer_kv_per_layer_pf_lf(
    src_k: torch.Tensor,
    dst_k: torch.Tensor,
    src_v: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
) -> None:
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(
            src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim
        )


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    _check_tables(num_layers, src_layers)
    _check_row(item_size, num_layers, dst_layout_dim)
    if not src_rows.numel():
        return
    src_count = int(src_rows.max()) + 1
    tokens = _rows(dst, dst_layout_dim)
    for layer_id, address in enumerate(src_layers.tolist()):
        layer = tokens.narrow(1, layer_id * item_size, item_size)
        _copy_rows(layer, dst_rows, _rows_at(address, src_count, item_size), src_rows)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: torch.Tensor,
    dst_k: torch.Tensor,
    src_v_layers: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
) -> None:
    _check_tables(num_layers, src_k_layers, src_v_layers)
    for src, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(
            src, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
        )


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    if src_rows.numel() % page_size:
        raise ValueError(
            f"{src_rows.numel()} token indices are not whole pages of page_size {page_size}"
        )
    _check_sides(src_layers, dst_layers)
    for src, dst in zip(src_layers, dst_layers, strict=True):
        item_size = _item_bytes(src)
        _copy_rows(_rows(dst, item_size), dst_rows, _rows(src, item_size), src_rows)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """src_ptrs: every layer of one component, then of the next; dst_ptrs: [page, layer, ...]."""
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    pages = _pages(dst_rows, page_size)
    wanted = sum(dst.shape[1] for dst in dst_ptrs)
    if len(src_ptrs) != wanted:
        raise ValueError(f"{len(src_ptrs)} layers do not fill pools of {wanted} layers together")
    layers = iter(src_ptrs)
    for dst in dst_ptrs:
        for layer_id, src in zip(range(dst.shape[1]), layers, strict=False):
            layer, page_bytes = _page_rows(dst, layer_id)
            tokens = _gather(_rows(src, _item_bytes(src)), src_rows)
            _scatter(layer, pages, tokens.view(-1, page_bytes))


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    src_rows, dst_rows = _paired(src_indices, dst_indices)
    pages = _pages(src_rows, page_size)
    _check_sides(src_ptrs, dst_ptrs)
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        layer, _ = _page_rows(src, layer_id)
        item_size = _item_bytes(dst)
        tokens = _gather(layer, pages).view(-1, item_size)
        _scatter(_rows(dst, item_size), dst_rows, tokens)


def _item_bytes(layer: torch.Tensor) -> int:
    return layer[0].numel() * layer.itemsize


def _page_rows(pool: torch.Tensor, layer_id: int) -> tuple[torch.Tensor, int]:
    """One layer of a [page, layer, ...] pool as bytes, [page, page_bytes], and page_bytes."""
    page_bytes = pool[0, 0].numel() * pool.itemsize
    rows = _rows(pool, page_bytes * pool.shape[1])
    return rows.narrow(1, layer_id * page_bytes, page_bytes), page_bytes


COPIES: dict[str, Callable[..., None]] = {
    copy.__name__: copy
    for copy in (
        transfer_kv_all_layer,
        transfer_kv_all_layer_direct_lf_pf,
        transfer_kv_all_layer_lf_pf,
        transfer_kv_all_layer_mla,
        transfer_kv_all_layer_mla_lf_pf,
        transfer_kv_direct,
        transfer_kv_per_layer,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_per_layer_mla,
        transfer_kv_per_layer_mla_pf_lf,
        transfer_kv_per_layer_pf_lf,
    )
}
"""The stand-ins by the name under which a host pool module looks them up."""
