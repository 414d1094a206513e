# SPDX-License-Identifier: Apache-2.0
"""`python -m kvstrata.exact_id`: see --help."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import SetupError
from .gating import SWITCH, Circumstances, is_enabled, kvcached_version
from .ownership import installed_claims
from .plan import PAGE_TOKENS, Capacity, ModelShape, PlannedPool, plan

_DESCRIPTION = """\
Prints which KV pools of a DeepSeek-V4 model would be managed, which would stay SGLang's own and
why, and how large they would be. Server arguments are those of sglang.launch_server; those that
do not matter here are listed and passed over. The environment counts: ENABLE_KVCACHED,
KVCACHED_CONTIGUOUS_LAYOUT, KVCACHED_PAGE_SIZE_MB, and the installed kvcached.
"""

_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvstrata.exact_id",
        description="Managed KV pools of DeepSeek-V4 over kvcached.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="plan")
    command = commands.add_parser(
        "plan",
        help="print which pools would be managed, and their sizes",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_options(command)
    options, passed_over = parser.parse_known_args(arguments)
    try:
        shape = ModelShape.from_config(_read(options.model_config))
        pools = plan(shape, _capacity(options, shape), _circumstances(options), installed_claims())
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(_as_json(pools, passed_over), indent=2))
    else:
        print(_as_text(pools, passed_over))
    return 0


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model-config", type=Path, required=True, metavar="FILE", help="config.json of the model"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    server = command.add_argument_group("server arguments that matter")
    server.add_argument("--tp-size", "--tp", "--tensor-parallel-size", type=int, default=1)
    server.add_argument("--pp-size", "--pp", "--pipeline-parallel-size", type=int, default=1)
    server.add_argument("--device", default="cuda")
    server.add_argument(
        "--max-total-tokens", type=int, help="tokens to plan for (default: the model's context)"
    )
    server.add_argument("--page-size", type=int, default=PAGE_TOKENS)
    server.add_argument("--swa-full-tokens-ratio", type=float, default=0.1)
    server.add_argument("--enable-memory-saver", action="store_true")
    server.add_argument("--enable-hierarchical-cache", action="store_true")
    server.add_argument("--enable-unified-cache-external-linker", action="store_true")
    server.add_argument("--enable-hisparse", action="store_true")
    server.add_argument("--enable-deepseek-v4-fp4-indexer", action="store_true")
    server.add_argument("--disaggregation-mode", default="null")
    server.add_argument("--dsv4-attn-backend", default="auto")


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            "--model-config", str(path), "a readable JSON file", f"{error}."
        ) from error
    if not isinstance(config, dict):
        raise SetupError("--model-config", str(path), "a JSON object", "Give a config.json.")
    return config


def _capacity(options: argparse.Namespace, shape: ModelShape) -> Capacity:
    if options.page_size != PAGE_TOKENS:
        raise SetupError(
            "--page-size", options.page_size, str(PAGE_TOKENS), "Leave it to SGLang's default."
        )
    ratio = options.swa_full_tokens_ratio
    if not 0 < ratio <= 1:
        raise SetupError("--swa-full-tokens-ratio", ratio, "above 0, up to 1", "Correct it.")
    tokens = options.max_total_tokens
    if tokens is None:
        tokens = shape.context_tokens
    capacity = Capacity(
        full_tokens=tokens,
        swa_ratio=ratio,
        vmm_page_bytes=_vmm_page_bytes(),
        uniform_fp8=options.dsv4_attn_backend == "trtllm",
        fp4_indexer=options.enable_deepseek_v4_fp4_indexer,
    )
    if capacity.swa_pages < 1:
        raise SetupError(
            "--max-total-tokens",
            tokens,
            f"at least {int(PAGE_TOKENS / ratio) + 1}: one page of the sliding window",
            "Plan for more tokens.",
        )
    return capacity


def _vmm_page_bytes() -> int:
    value = os.environ.get("KVCACHED_PAGE_SIZE_MB", "2")
    if not value.isdecimal() or int(value) < 2 or int(value) % 2:
        raise SetupError("KVCACHED_PAGE_SIZE_MB", value, "a multiple of 2", "Correct it.")
    return int(value) * _MIB


def _circumstances(options: argparse.Namespace) -> Circumstances:
    # As kvcached reads it on CUDA.
    layout = os.environ.get("KVCACHED_CONTIGUOUS_LAYOUT", "true").lower() == "true"
    return Circumstances(
        tp_size=options.tp_size,
        pp_size=options.pp_size,
        kvcached_version=kvcached_version(),
        contiguous_layout=layout,
        device_type=options.device.partition(":")[0],
        memory_saver=options.enable_memory_saver,
        hierarchical_cache=options.enable_hierarchical_cache,
        external_linker=options.enable_unified_cache_external_linker,
        disaggregation=options.disaggregation_mode != "null",
        hisparse=options.enable_hisparse,
    )


def _as_json(pools: Sequence[PlannedPool], passed_over: Sequence[str]) -> dict[str, object]:
    return {
        "switched_on": is_enabled(os.environ),
        "passed_over": list(passed_over),
        "pools": [pool.as_dict() for pool in pools],
    }


def _as_text(pools: Sequence[PlannedPool], passed_over: Sequence[str]) -> str:
    titles = ("pool", "owner", "layers", "pages", "B/page", "straddling", "native", "virtual",
              "least", "why")  # fmt: skip
    rows = [titles, *(_row(pool) for pool in pools)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in (0, 1, len(titles) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines += [
        "",
        "native: what SGLang allocates itself; virtual: addresses of a managed pool;",
        "least: physical memory when no request runs. Sizes are MiB over all layers.",
    ]
    if not is_enabled(os.environ):
        lines.append(f"{SWITCH} is off: as it is, every pool is SGLang's own.")
    if passed_over:
        lines.append(f"These server arguments do not matter here: {' '.join(passed_over)}")
    return "\n".join(lines)


def _row(pool: PlannedPool) -> tuple[str, ...]:
    share = "-" if pool.straddling_share is None else f"{pool.straddling_share:.2%}"
    return (
        pool.pool,
        "managed" if pool.is_managed else "native",
        str(pool.layer_count),
        "-" if pool.page_count is None else str(pool.page_count),
        "-" if pool.page_bytes is None else str(pool.page_bytes),
        share,
        *("-" if size is None else f"{size / _MIB:.1f}" for size in (
            pool.native_bytes, pool.virtual_bytes, pool.least_bytes)),
        pool.why,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
