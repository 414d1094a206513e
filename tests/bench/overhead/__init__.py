# SPDX-License-Identifier: Apache-2.0
"""What kvstrata-kvcr adds to SGLang and to KVCR, as ratios measured in one run."""
