# SPDX-License-Identifier: Apache-2.0
__all__: list[str] = []
