# SPDX-License-Identifier: Apache-2.0
"""The worker process: ending it when its memory can no longer be trusted."""

import logging
import os
import signal

logger = logging.getLogger(__name__)

EXIT_CODE = 70


def end_worker(reason: str) -> None:
    """End this rank at once and tell SGLang's parent process to stop the server.

    SGLang's own scheduler reports a fatal error to its parent with SIGQUIT in the same way.
    """
    logger.critical("kvcr: %s", reason)
    logging.shutdown()
    os.kill(os.getppid(), signal.SIGQUIT)
    os._exit(EXIT_CODE)
