# SPDX-License-Identifier: Apache-2.0
"""Lets kvcached's own setup.py, in a process of pip, compile its CUDA sources with a CPU torch.

CUDA_HOME is a folder with the stand-in headers and libraries, CFLAGS what the build adds.
"""

import os
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

torch.version.cuda = "13.0"
cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
# The variable replaces Python's own flags. Folders that differ from build to build stay out.
flags = (sysconfig.get_config_var("CFLAGS"), os.environ["CFLAGS"])
os.environ["CFLAGS"] = " ".join([*flags, f"-ffile-prefix-map={Path.cwd()}=kvcached"])
