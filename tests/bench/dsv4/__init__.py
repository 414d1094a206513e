# SPDX-License-Identifier: Apache-2.0
"""What managed pools cost SGLang's allocator beside native ones, and what they save."""
