# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end: SGLang replicas share the KV cache of a long prompt through KVCR."""
