# SPDX-License-Identifier: Apache-2.0
"""Reads of another size than SGLang's."""

from kvstrata.kvcr.extension import Extension

from .around import Around


class ReadBatches(Around):
    """Reads so many pages at a time."""

    def __init__(self, inner: Extension, pages: int) -> None:
        super().__init__(inner)
        self.read_batch_pages = pages
