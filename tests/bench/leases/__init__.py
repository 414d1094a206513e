# SPDX-License-Identifier: Apache-2.0
"""What exact-id's leases cost beside SGLang and kvcached, measured in one run; what it maps."""
