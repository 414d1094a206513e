# SPDX-License-Identifier: Apache-2.0
"""Lets kvcached's own setup.py, in a process of pip, compile for CUDA against a CPU torch.

CUDA_HOME is a folder with the stand-in headers and libraries.
"""

import os
from pathlib import Path

import torch
import torch.utils.cpp_extension as cpp_extension

torch.version.cuda = "13.0"
cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
# Folders that differ from build to build stay out of the wheel.
os.environ["CFLAGS"] += f" -ffile-prefix-map={Path.cwd()}=kvcached"
