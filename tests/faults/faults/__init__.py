# SPDX-License-Identifier: Apache-2.0
"""Faults, one after the other, while a replica restores from a peer; every answer is compared."""
