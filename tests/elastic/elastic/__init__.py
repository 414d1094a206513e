# SPDX-License-Identifier: Apache-2.0
"""A DeepSeek-V4 pool under a load in waves: its memory follows the load, and a limit."""
