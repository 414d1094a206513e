# SPDX-License-Identifier: Apache-2.0
"""A KVCR source in a process of its own: deposits pattern pages, then answers until told to end.

Run as: python -m tests.peer <control port> <nixl port> <page bytes> <pages>
"""

import sys

from kvstrata.kvcr.instance import RunnerAddress
from kvstrata.kvcr.runner import Runner

from .memory import PageMemory, deadlines, pattern


def main() -> None:
    control_port, nixl_port, page_bytes, pages = map(int, sys.argv[1:])
    memory = PageMemory(page_bytes, pages)
    runner = Runner(
        RunnerAddress(f"peer-{control_port}", "127.0.0.1", "127.0.0.1", control_port, nixl_port),
        memory.pools,
        dram_bytes=page_bytes * pages,
        deadlines=deadlines(),
        is_gone=lambda source: False,
        end_worker=sys.exit,
    )
    for page in range(pages):
        memory.fill(page, pattern(page, page_bytes))
    blocks = memory.blocks(runner.address.agent, {page: page for page in range(pages)})
    if not all(runner.deposit(blocks)):
        raise SystemExit("the source could not deposit its pages")
    print("ready", flush=True)
    sys.stdin.readline()
    runner.close()


if __name__ == "__main__":
    main()
