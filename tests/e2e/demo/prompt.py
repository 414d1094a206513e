# SPDX-License-Identifier: Apache-2.0
"""Prompts: token ids drawn from a seed, so that every run and every replica sees the same ones."""

import random

_FIRST_TOKEN = 3  # behind the special tokens
_TOKENS = 256  # one per byte

Tokens = tuple[int, ...]


def draw(name: str, *, count: int, seed: int) -> Tokens:
    """`count` token ids; prompts of different names share no prefix worth a page."""
    source = random.Random(f"{seed}/{name}")
    return tuple(source.randrange(_FIRST_TOKEN, _FIRST_TOKEN + _TOKENS) for _ in range(count))
