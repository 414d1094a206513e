# SPDX-License-Identifier: Apache-2.0
"""What SGLang's scheduler does with KV memory for a small DeepSeek-V4 model, on a CPU.

SGLang's own code sizes and makes the pools, picks the prefix cache, admits, allocates, retracts,
caches and frees. There are no weights: tokens are made up, and each page is filled with marks that
tell which prefix it belongs to. Importing this imports nothing of SGLang.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..dsv4 import PAGE_TOKENS

WINDOW_TOKENS = 128
VOCABULARY = 1024
_C4 = 4
_MARKED_BYTES = 8
"""At the start of each token's share of a page, in each layer."""


@dataclass(frozen=True)
class Size:
    """How large the model's memory is; each compression ratio is a layer."""

    full_pages: int = 64
    swa_ratio: float = 0.5
    max_requests: int = 8
    chunk_tokens: int | None = None
    compression_ratios: tuple[int, ...] = (0, 4, 128, 4)


class DamageError(AssertionError):
    """A page does not hold what its owner wrote."""


@contextmanager
def configured(size: Size) -> Iterator[Any]:
    """SGLang's configuration for the model; its branches for CUDA rather than for a plug-in."""
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.runtime_context import get_context

    platform = kv_cache_configurator.current_platform
    kv_cache_configurator.current_platform = SimpleNamespace(
        is_out_of_tree=lambda: False, is_cpu=lambda: False
    )
    override = get_context().override_server_args(
        page_size=PAGE_TOKENS,
        max_running_requests=size.max_requests,
        max_total_tokens=size.full_pages * PAGE_TOKENS,
        swa_full_tokens_ratio=size.swa_ratio,
        mem_fraction_static=0.8,
        chunked_prefill_size=size.chunk_tokens or -1,
        attention_backend="torch_native",
        device="cpu",
    )
    try:
        with override as arguments:
            yield arguments
    finally:
        kv_cache_configurator.current_platform = platform


@dataclass
class Engine:
    """The memory of one model and the requests on it; made and used inside `configured`."""

    arguments: Any
    folder: Path
    size: Size
    waiting: list[Any] = field(default_factory=list)
    retracted: int = 0
    aborted: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    _known_marks: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self.algorithm = SpeculativeAlgorithm.NONE
        self.model = _model_config(self.folder, self.size)
        made = _configure(self)
        self.full_tokens: int = made.full_max_total_num_tokens
        self.swa_tokens: int = made.swa_max_total_num_tokens
        self.requests: Any = made.req_to_token_pool
        self.pool: Any = made.token_to_kv_pool
        self.allocator: Any = made.token_to_kv_pool_allocator
        self.cache = _prefix_cache(self, made)
        self.running = self._batch([])
        self.last = self.running
        self.chunked: Any = None
        self.checker = _checker(self)

    def submit(self, name: str, tokens: Sequence[int], *, answer_tokens: int) -> Any:
        """A request that waits; returns SGLang's own `Req`."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        request = Req(
            name,
            "",
            array("q", tokens),
            SamplingParams(max_new_tokens=answer_tokens, temperature=0),
            vocab_size=VOCABULARY,
            eos_token_ids={-1},
        )
        request.sampling_params.normalize(None)
        self.waiting.append(request)
        return request

    def step(self) -> list[Any]:
        """One round of the scheduler: a prefill where one is admitted, else a decode.

        Returns the requests that were computed.
        """
        return self.prefill() or self.decode()

    def prefill(self) -> list[Any]:
        """Admit waiting requests, compute their prompts and cache them."""
        admitted = self._admit()
        if not admitted:
            return []
        batch = self._batch(admitted)
        batch.prepare_for_extend()
        for request in admitted:
            start, end = request.extend_range.start, request.extend_range.end
            self._expect(request, range(start))
            self._write(request, range(start, end))
            self.reused_tokens += start
            self.prefilled_tokens += end - start
        self.last = batch
        with self._group():
            for request in admitted:
                if request.inflight_middle_chunks > 0:
                    request.inflight_middle_chunks -= 1
                else:
                    self._answer(request, if_unfinished=self.cache.cache_unfinished_req)
        batch.filter_batch(chunked_req_to_exclude=self.chunked)
        if self.running.is_empty():
            self.running = batch
        elif not batch.is_empty():
            self.running.merge_batch(batch)
        return admitted

    def decode(self) -> list[Any]:
        """One token for each running request; where memory is short, some are retracted."""
        if self.running.is_empty():
            return []
        if not self.running.check_decode_mem():
            retracted, _, given_up = self.running.retract_decode()
            self.retracted += len(retracted)
            self.aborted += len(given_up)
            self.waiting = retracted + self.waiting
            if self.running.is_empty():
                return []
        self.running.prepare_for_decode()
        computed: list[Any] = list(self.running.reqs)
        for request in computed:
            length = request.kv.kv_allocated_len
            self._write(request, range(length - 1, length))
        self.last = self.running
        with self._group():
            for request in computed:
                self._answer(request)
        self.running.filter_batch()
        return computed

    def finish(self) -> None:
        """Run until no request waits or runs."""
        while self.step():
            pass

    def flush(self) -> None:
        """What SGLang's flush_cache does with an idle engine."""
        self.last = self.running = self._batch([])
        self.cache.reset()
        self.requests.clear()
        self.allocator.clear()

    def check(self) -> None:
        """SGLang's own checks: that no token was lost, busy and idle; and every page's content."""
        self.cache.sanity_check()
        if self.running.is_empty() and self.chunked is None:
            stats = self.checker.pool_stats_observer.get_pool_stats()
            leaked, messages = self.checker._check_all_pools(stats)
            if leaked:
                self.checker._report_leak("token_to_kv_pool_allocator", " ".join(messages))
            self.checker._check_req_pool()
        else:
            self.checker.self_check_during_busy()
        for request in self.running.reqs:
            self._expect(request, range(request.kv.kv_committed_len))

    @property
    def free_ids(self) -> Mapping[str, list[int]]:
        """The free page ids of both sides, in SGLang's order."""
        return {
            "full": self.allocator.full_attn_allocator.get_all_free_pages().tolist(),
            "swa": self.allocator.swa_attn_allocator.get_all_free_pages().tolist(),
        }

    @property
    def live_ids(self) -> Mapping[str, list[int]]:
        """The page ids that are not free; ascending."""
        free = self.free_ids
        sizes = {"full": self.full_tokens, "swa": self.swa_tokens}
        return {
            side: sorted(set(range(1, 1 + sizes[side] // PAGE_TOKENS)) - set(ids))
            for side, ids in free.items()
        }

    def layers(self, pool: str) -> list[Any]:
        """The rows of a pool in each of its layers, as bytes: `swa`, `c4` or `indexer`."""
        import torch

        buffers = {
            "swa": lambda: self.pool.swa_kv_pool.kv_buffer,
            "c4": lambda: self.pool.kv_pools[_C4].kv_buffer,
            "indexer": lambda: self.pool.index_pools[_C4].index_k_with_scale_buffer,
        }
        return [layer.view(torch.uint8) for layer in buffers[pool]()]

    def _admit(self) -> list[Any]:
        """The requests that SGLang lets in, with the next part of one that comes in parts."""
        from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

        chunked = self.chunked
        if chunked is not None and chunked.extend_range.end > len(chunked.prefix_indices):
            self.cache.cache_unfinished_req(chunked, chunked=True)
        adder = PrefillAdder(
            PAGE_TOKENS,
            self.cache,
            self.allocator,
            self.running,
            new_token_ratio=0.5,
            rem_input_tokens=self.full_tokens,
            rem_chunk_tokens=self.size.chunk_tokens,
        )
        if chunked is not None:
            chunked.init_next_round_input()
            self.chunked = adder.add_chunked_req(chunked)
        for request in self.waiting:
            if len(adder.can_run_list) + len(self.running.reqs) >= self.size.max_requests:
                break
            request.init_next_round_input(self.cache)
            verdict = adder.add_one_req(
                request, has_chunked_req=self.chunked is not None, truncation_align_size=None
            )
            if verdict != AddReqResult.CONTINUE:
                break
        admitted: list[Any] = adder.can_run_list
        self.waiting = [each for each in self.waiting if each not in admitted]
        if adder.new_chunked_req is not None:
            self.chunked = adder.new_chunked_req
        if self.chunked is not None and admitted:
            self.chunked.inflight_middle_chunks += 1
        return admitted

    def _batch(self, requests: list[Any]) -> Any:
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        return ScheduleBatch.init_new(
            requests,
            self.requests,
            self.allocator,
            self.cache,
            self.model,
            enable_overlap=False,
            spec_algorithm=self.algorithm,
            chunked_req=self.chunked if requests else None,
        )

    @contextmanager
    def _group(self) -> Iterator[None]:
        self.allocator.free_group_begin()
        yield
        self.allocator.free_group_end()

    def _answer(self, request: Any, *, if_unfinished: Callable[[Any], None] | None = None) -> None:
        from sglang.srt.mem_cache.common import release_kv_cache

        request.output_ids.append(1 + zlib.crc32(bytes(request.output_ids)) % (VOCABULARY - 1))
        request.update_finish_state()
        if request.finished():
            release_kv_cache(request, self.cache)
        elif if_unfinished is not None:
            if_unfinished(request)

    def _write(self, request: Any, positions: range) -> None:
        self._visit(request, positions, _fill)

    def _expect(self, request: Any, positions: range) -> None:
        self._visit(request, positions, partial(_compare, request.rid))

    def _visit(
        self, request: Any, positions: range, act: Callable[[Any, Any, Any, str], None]
    ) -> None:
        """Call `act` with the slots of tokens in each layer, and with the marks for them."""
        import torch

        marks = torch.tensor(
            self._marks(request, positions.stop)[positions.start : positions.stop],
            dtype=torch.uint8,
        )
        row = self.requests.req_to_token[request.kv.req_pool_idx]
        full = row[positions.start : positions.stop].to(torch.int64)
        swa = self.allocator.full_to_swa_index_mapping[full]
        # What has left the window has no sliding-window slot any more.
        there = swa > 0
        compressed = torch.tensor(positions, dtype=torch.int64) % _C4 == _C4 - 1
        c4 = full[compressed] // _C4
        for pool, slots, wanted, per_page in (
            ("swa", swa[there], marks[there], PAGE_TOKENS),
            ("c4", c4, marks[compressed], PAGE_TOKENS // _C4),
            ("indexer", c4, marks[compressed], PAGE_TOKENS // _C4),
        ):
            for number, rows in enumerate(self.layers(pool)):
                share = rows.shape[1] // per_page
                shares = rows[:, : share * per_page].view(rows.shape[0], per_page, share)
                place = (slots // per_page, slots % per_page)
                act(
                    shares[..., :_MARKED_BYTES], place, wanted + number, f"layer {number} of {pool}"
                )

    def _marks(self, request: Any, count: int) -> list[int]:
        """For each position, a byte that depends on all tokens up to it."""
        known = self._known_marks.setdefault(request.rid, [0])
        tokens = request.origin_input_ids + request.output_ids
        for token in tokens[len(known) - 1 : count]:
            known.append(zlib.crc32(token.to_bytes(8, "little"), known[-1]))
        return [1 + state % 128 for state in known[1:]]


def _fill(shares: Any, place: Any, marks: Any, _: str) -> None:
    shares[place] = marks[:, None]


def _compare(request: str, shares: Any, place: Any, marks: Any, where: str) -> None:
    if (shares[place] != marks[:, None]).any():
        raise DamageError(f"{where} does not hold what request {request} wrote")


def _model_config(folder: Path, size: Size) -> Any:
    from sglang.srt.configs.model_config import ModelConfig

    config = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_hidden_layers": len(size.compression_ratios),
        "compress_ratios": list(size.compression_ratios),
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_nope_head_dim": 448,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "q_lora_rank": 64,
        "o_lora_rank": 64,
        "max_position_embeddings": 1 << 16,
        "sliding_window": WINDOW_TOKENS,
        "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelConfig(str(folder))


def _ranks() -> Any:
    return SimpleNamespace(
        attn_dp_size=1, tp_size=1, tp_rank=0, pp_size=1, pp_rank=0, attn_cp_size=1, attn_cp_rank=0
    )


def _configure(engine: Engine) -> Any:
    """SGLang's configurator, with a budget in place of what a GPU has left."""
    import torch
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    class Configurator(KVCacheConfigurator):  # type: ignore[misc]
        __slots__ = ()

        def _profile_available_bytes(self, pre_model_load_memory: int) -> int:
            return 1 << 36

    layers = len(engine.size.compression_ratios)
    return Configurator(
        device="cpu",
        gpu_id=0,
        ps=_ranks(),
        pp_group=None,
        model=None,
        model_config=engine.model,
        server_args=engine.arguments,
        kv_cache_dtype=torch.float8_e4m3fn,
        model_dtype=torch.bfloat16,
        page_size=PAGE_TOKENS,
        sliding_window_size=engine.model.window_size,
        spec_algorithm=engine.algorithm,
        is_draft_worker=False,
        post_capture_kv_active=False,
        spec_aux_config=None,
        is_hybrid_swa=engine.model.is_hybrid_swa,
        is_hybrid_swa_compress=engine.model.is_hybrid_swa_compress,
        use_mla_backend=True,
        layer_info=SimpleNamespace(num_effective_layers=layers, start_layer=0, end_layer=layers),
        forward_stream=None,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=None,
        memory_pool_config=None,
    ).configure(pre_model_load_memory=0)


def _prefix_cache(engine: Engine, made: Any) -> Any:
    """The prefix cache that SGLang picks for the model."""
    from sglang.srt.mem_cache.kv_cache_builder import build_kv_cache

    worker = SimpleNamespace(
        is_hybrid_swa=engine.model.is_hybrid_swa,
        sliding_window_size=engine.model.window_size,
        model_runner=SimpleNamespace(model_config=engine.model, mtp_draft_device_pools=()),
        get_tokens_per_layer_info=lambda: (engine.full_tokens, engine.swa_tokens),
        get_memory_pool=lambda: (made.req_to_token_pool, made.token_to_kv_pool_allocator),
    )
    return build_kv_cache(
        server_args=engine.arguments,
        model_config=engine.model,
        tp_worker=worker,
        page_size=PAGE_TOKENS,
        spec_algorithm=engine.algorithm,
        attn_tp_cpu_group=None,
        tp_cpu_group=None,
        attn_cp_cpu_group=None,
        enable_metrics=False,
        enable_kv_cache_events=False,
        ps=_ranks(),
        tp_group=None,
        pp_group=SimpleNamespace(cpu_group=None),
        enable_hierarchical_cache=False,
    ).tree_cache


def _checker(engine: Engine) -> Any:
    """The checks that SGLang's scheduler makes while it is idle or busy."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.scheduler_components.invariant_checker import (
        SchedulerInvariantChecker,
    )
    from sglang.srt.managers.scheduler_components.pool_stats_observer import (
        SchedulerPoolStatsObserver,
    )
    from sglang.srt.observability.scheduler_stage_metrics import SchedulerStageMetricsRecorder

    common: dict[str, Any] = {
        "tree_cache": engine.cache,
        "token_to_kv_pool_allocator": engine.allocator,
        "req_to_token_pool": engine.requests,
        "is_hybrid_swa": True,
        "is_hybrid_ssm": False,
        "full_tokens_per_layer": engine.full_tokens,
        "swa_tokens_per_layer": engine.swa_tokens,
        "max_total_num_tokens": engine.full_tokens,
        "get_last_batch": lambda: engine.last,
        "get_running_batch": lambda: engine.running,
    }
    observer = SchedulerPoolStatsObserver(
        session_controller=None, hisparse_coordinator=None, enable_hisparse=False, **common
    )
    return SchedulerInvariantChecker(
        disaggregation_mode=DisaggregationMode.NULL,
        page_size=PAGE_TOKENS,
        pool_stats_observer=observer,
        scheduler_stage_metrics=SchedulerStageMetricsRecorder(enabled=False),
        get_chunked_req=lambda: engine.chunked,
        **common,
    )
