# SPDX-License-Identifier: Apache-2.0
"""KVCR beside its peers: the same pages through every way that this machine has."""
