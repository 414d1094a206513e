// SPDX-License-Identifier: Apache-2.0
// Included before each of kvcached's sources: its code for GPUs takes torch's device "cpu".
#pragma once

#include <stdexcept>
#include <string>

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

namespace torch::stable {

// The device whose memory kvcached maps. It answers as a GPU, so that kvcached maps and unmaps
// pages through the driver; as a torch device it is the CPU, so that its tensors can be used.
class __attribute__((visibility("hidden"))) HostDevice : public Device {
public:
  HostDevice(torch::headeronly::DeviceType type) : Device(type) {}

  HostDevice(const std::string &name) : Device(name) {
    if (!Device::is_cpu()) {
      throw std::invalid_argument("kvcached+host maps host memory: device \"" + name +
                                  "\" must be \"cpu\"");
    }
  }

  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
};

} // namespace torch::stable

#define Device HostDevice
