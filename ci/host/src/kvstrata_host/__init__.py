# SPDX-License-Identifier: Apache-2.0
"""Test equipment: what lets the real SGLang run with HiCache on a machine with no GPU.

The public surface is in the modules `model`, `server` and `spec`. This one imports nothing, because
every interpreter start passes through it (see `torchvision_ops`).
"""
