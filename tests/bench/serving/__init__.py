# SPDX-License-Identifier: Apache-2.0
"""Two real servers and prompts that share prefixes: what storage is worth to a request."""
