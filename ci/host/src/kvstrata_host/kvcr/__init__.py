# SPDX-License-Identifier: Apache-2.0
"""What tests of the slices of KVCR have in common; needs kvstrata-kvcr, which the rest does not."""
