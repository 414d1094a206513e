// SPDX-License-Identifier: Apache-2.0
// CUDA's virtual memory management over host memory, as far as kvcached uses it.
//
// Physical memory is a piece of one memfd; virtual ranges are reserved without access. Mapping is
// mmap, so two ranges over one allocation see the same bytes, and memory goes back to the kernel
// once an allocation is released and unmapped. What is mapped can be touched only after
// cuMemSetAccess. Arguments that CUDA refuses are refused, and a call that fails changes nothing.
// Physical memory is limited by the budget alone, in whole allocations, touched or not.

#include <cuda.h>
#include <cuda_runtime.h>
#include <vmm_control.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t kGranularity = size_t{2} << 20;
constexpr uint64_t kDefaultBudget = uint64_t{8} << 30;

struct Allocation {
  off_t start;
  size_t size;
  size_t mappings;
  bool released;
};

using Allocations = std::unordered_map<CUmemGenericAllocationHandle, Allocation>;

struct Mapping {
  size_t size;
  CUmemGenericAllocationHandle handle;
};

bool aligned(unsigned long long value) { return value % kGranularity == 0; }

void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

bool take_range_back(CUdeviceptr address, size_t size) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(pointer(address), size, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

class Vmm {
public:
  // Never destroyed: kvcached's own statics unmap while the process ends.
  static Vmm &instance() {
    static Vmm *vmm = new Vmm;
    return *vmm;
  }

  // Counts the call, and makes it unless a failure was asked for.
  template <typename Body> CUresult call(kvstrata_vmm_call name, Body body) {
    std::lock_guard<std::mutex> guard(mutex_);
    const uint64_t number = ++state_.calls[name];
    CUresult result = CUDA_SUCCESS;
    auto asked = asked_[name].find(number);
    if (asked != asked_[name].end()) {
      result = asked->second;
      asked_[name].erase(asked);
    } else {
      result = body(*this);
    }
    if (result != CUDA_SUCCESS) {
      ++state_.failures[name];
    }
    return result;
  }

  CUresult reserve(CUdeviceptr *address, size_t size, CUdeviceptr hint) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // A hint that is not free moves the range, which then may not be aligned: ask for more.
    void *wide = mmap(pointer(hint), size, PROT_NONE, flags, -1, 0);
    if (wide == MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto start = reinterpret_cast<CUdeviceptr>(wide);
    if (!aligned(start)) {
      munmap(wide, size);
      wide = mmap(nullptr, size + kGranularity, PROT_NONE, flags, -1, 0);
      if (wide == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      const auto low = reinterpret_cast<CUdeviceptr>(wide);
      start = (low + kGranularity - 1) / kGranularity * kGranularity;
      if (start > low) {
        munmap(wide, start - low);
      }
      munmap(pointer(start + size), low + kGranularity - start);
    }
    reservations_[start] = size;
    state_.reserved_bytes += size;
    *address = start;
    return CUDA_SUCCESS;
  }

  CUresult address_free(CUdeviceptr address, size_t size) {
    auto found = reservations_.find(address);
    if (found == reservations_.end() || found->second != size) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto inside = mappings_.lower_bound(address);
    if (inside != mappings_.end() && inside->first < address + size) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (munmap(pointer(address), size) != 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    reservations_.erase(found);
    state_.reserved_bytes -= size;
    return CUDA_SUCCESS;
  }

  CUresult create(CUmemGenericAllocationHandle *handle, size_t size) {
    if (size > state_.budget_bytes || state_.created_bytes > state_.budget_bytes - size) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto &unused = unused_[size];
    if (unused.empty()) {
      if (!grow(size)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
      }
      unused.push_back(end_ - static_cast<off_t>(size));
    }
    const off_t start = unused.back();
    unused.pop_back();
    *handle = ++last_handle_;
    allocations_[*handle] = {start, size, 0, false};
    state_.created_bytes += size;
    ++state_.allocations;
    return CUDA_SUCCESS;
  }

  CUresult release(CUmemGenericAllocationHandle handle) {
    auto found = allocations_.find(handle);
    if (found == allocations_.end() || found->second.released) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second.released = true;
    give_back_if_unused(found);
    return CUDA_SUCCESS;
  }

  CUresult map(CUdeviceptr address, size_t size, size_t offset,
               CUmemGenericAllocationHandle handle) {
    auto found = allocations_.find(handle);
    if (found == allocations_.end() || found->second.released || offset > found->second.size ||
        size > found->second.size - offset || !is_reserved(address, size) ||
        overlaps_mapping(address, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const off_t start = found->second.start + static_cast<off_t>(offset);
    if (mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file_, start) ==
        MAP_FAILED) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mappings_[address] = {size, handle};
    ++found->second.mappings;
    state_.mapped_bytes += size;
    return CUDA_SUCCESS;
  }

  CUresult unmap(CUdeviceptr address, size_t size) {
    if (!is_tiled_by_mappings(address, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!take_range_back(address, size)) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (auto each = mappings_.find(address);
         each != mappings_.end() && each->first < address + size;) {
      const auto allocation = allocations_.find(each->second.handle);
      state_.mapped_bytes -= each->second.size;
      each = mappings_.erase(each);
      --allocation->second.mappings;
      give_back_if_unused(allocation);
    }
    return CUDA_SUCCESS;
  }

  CUresult set_access(CUdeviceptr address, size_t size, CUmemAccess_flags flags) {
    if (!is_tiled_by_mappings(address, size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                           : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                       : PROT_NONE;
    return mprotect(pointer(address), size, protection) == 0 ? CUDA_SUCCESS
                                                              : CUDA_ERROR_OPERATING_SYSTEM;
  }

  CUresult memory_info(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = state_.budget_bytes;
    *free_bytes = state_.budget_bytes > state_.created_bytes
                      ? state_.budget_bytes - state_.created_bytes
                      : 0;
    return CUDA_SUCCESS;
  }

  kvstrata_vmm_state read() {
    std::lock_guard<std::mutex> guard(mutex_);
    struct stat file = {};
    if (file_ >= 0 && fstat(file_, &file) == 0) {
      state_.committed_bytes = static_cast<uint64_t>(file.st_blocks) * 512;
    }
    return state_;
  }

  void set_budget(uint64_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    state_.budget_bytes = bytes;
  }

  void fail(int name, uint64_t nth, CUresult result) {
    std::lock_guard<std::mutex> guard(mutex_);
    asked_[name][state_.calls[name] + nth] = result;
  }

  uint64_t forget_failures(int name) {
    std::lock_guard<std::mutex> guard(mutex_);
    const uint64_t forgotten = asked_[name].size();
    asked_[name].clear();
    return forgotten;
  }

private:
  Vmm() { state_.budget_bytes = kDefaultBudget; }

  bool grow(size_t size) {
    if (file_ < 0) {
      file_ = memfd_create("kvcached-host", MFD_CLOEXEC);
    }
    if (file_ < 0 || ftruncate(file_, end_ + static_cast<off_t>(size)) != 0) {
      return false;
    }
    end_ += static_cast<off_t>(size);
    return true;
  }

  void give_back_if_unused(Allocations::iterator found) {
    const Allocation allocation = found->second;
    if (!allocation.released || allocation.mappings != 0) {
      return;
    }
    constexpr int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(file_, mode, allocation.start, static_cast<off_t>(allocation.size)) != 0) {
      perror("kvcached+host: the kernel takes no memory back");
      abort();
    }
    allocations_.erase(found);
    unused_[allocation.size].push_back(allocation.start);
    state_.created_bytes -= allocation.size;
    --state_.allocations;
  }

  bool is_reserved(CUdeviceptr address, size_t size) const {
    auto after = reservations_.upper_bound(address);
    if (after == reservations_.begin()) {
      return false;
    }
    const auto &[start, length] = *std::prev(after);
    return address - start <= length && size <= length - (address - start);
  }

  bool overlaps_mapping(CUdeviceptr address, size_t size) const {
    auto after = mappings_.lower_bound(address + size);
    if (after == mappings_.begin()) {
      return false;
    }
    const auto &[start, mapping] = *std::prev(after);
    return start + mapping.size > address;
  }

  bool is_tiled_by_mappings(CUdeviceptr address, size_t size) const {
    CUdeviceptr reached = address;
    for (auto each = mappings_.find(address);
         each != mappings_.end() && each->first == reached && reached < address + size; ++each) {
      reached += each->second.size;
    }
    return reached == address + size;
  }

  std::mutex mutex_;
  int file_ = -1;
  off_t end_ = 0;
  CUmemGenericAllocationHandle last_handle_ = 0;
  kvstrata_vmm_state state_ = {};
  std::map<CUdeviceptr, size_t> reservations_;
  std::map<CUdeviceptr, Mapping> mappings_;
  Allocations allocations_;
  std::unordered_map<size_t, std::vector<off_t>> unused_;
  std::unordered_map<uint64_t, CUresult> asked_[KVSTRATA_VMM_CALLS];
};

cudaError_t as_runtime_error(CUresult result) { return static_cast<cudaError_t>(result); }

bool is_host_device(const CUmemLocation &location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == 0;
}

bool is_call(int call) { return call >= 0 && call < KVSTRATA_VMM_CALLS; }

bool is_host_memory(const CUmemAllocationProp &prop) {
  return prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE && is_host_device(prop.location);
}

bool is_range(CUdeviceptr address, size_t size) {
  return size > 0 && aligned(size) && aligned(address) && address + size > address;
}

} // namespace

CUresult cuGetErrorString(CUresult result, const char **text) {
  switch (result) {
  case CUDA_SUCCESS:
    *text = "no error";
    return CUDA_SUCCESS;
  case CUDA_ERROR_INVALID_VALUE:
    *text = "invalid argument";
    return CUDA_SUCCESS;
  case CUDA_ERROR_OUT_OF_MEMORY:
    *text = "out of memory";
    return CUDA_SUCCESS;
  case CUDA_ERROR_INVALID_DEVICE:
    *text = "invalid device ordinal";
    return CUDA_SUCCESS;
  case CUDA_ERROR_OPERATING_SYSTEM:
    *text = "OS call failed or operation not supported on this OS";
    return CUDA_SUCCESS;
  case CUDA_ERROR_UNKNOWN:
    *text = "unknown error";
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (device != 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags) {
  if (!is_host_memory(*prop)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return Vmm::instance().call(KVSTRATA_VMM_RESERVE, [=](Vmm &vmm) {
    const bool can_align = alignment == 0 || kGranularity % alignment == 0;
    if (size == 0 || !aligned(size) || !can_align || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return vmm.reserve(address, size, hint);
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  return Vmm::instance().call(KVSTRATA_VMM_ADDRESS_FREE,
                              [=](Vmm &vmm) { return vmm.address_free(address, size); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags) {
  return Vmm::instance().call(KVSTRATA_VMM_CREATE, [=](Vmm &vmm) {
    if (size == 0 || !aligned(size) || !is_host_memory(*prop) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return vmm.create(handle, size);
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Vmm::instance().call(KVSTRATA_VMM_RELEASE,
                              [=](Vmm &vmm) { return vmm.release(handle); });
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return Vmm::instance().call(KVSTRATA_VMM_MAP, [=](Vmm &vmm) {
    if (!is_range(address, size) || !aligned(offset) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return vmm.map(address, size, offset, handle);
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  return Vmm::instance().call(KVSTRATA_VMM_UNMAP, [=](Vmm &vmm) {
    return is_range(address, size) ? vmm.unmap(address, size) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                        size_t count) {
  return Vmm::instance().call(KVSTRATA_VMM_SET_ACCESS, [=](Vmm &vmm) {
    if (!is_range(address, size) || count != 1 || !is_host_device(access->location)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return vmm.set_access(address, size, access->flags);
  });
}

const char *cudaGetErrorString(cudaError_t error) {
  const char *text = nullptr;
  cuGetErrorString(static_cast<CUresult>(error), &text);
  return text ? text : "unrecognized error code";
}

cudaError_t cudaFree(void *pointer) {
  return pointer == nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  return as_runtime_error(Vmm::instance().call(KVSTRATA_VMM_MEMORY_INFO, [=](Vmm &vmm) {
    return vmm.memory_info(free_bytes, total_bytes);
  }));
}

cudaError_t cudaDeviceSynchronize() {
  return as_runtime_error(Vmm::instance().call(KVSTRATA_VMM_SYNCHRONIZE,
                                               [](Vmm &) { return CUDA_SUCCESS; }));
}

int kvstrata_vmm_read(kvstrata_vmm_state *state, size_t size) {
  if (size != sizeof(*state)) {
    return -1;
  }
  *state = Vmm::instance().read();
  return 0;
}

void kvstrata_vmm_set_budget(uint64_t bytes) { Vmm::instance().set_budget(bytes); }

int kvstrata_vmm_fail(int call, uint64_t nth, int result) {
  if (!is_call(call) || nth == 0 || result == CUDA_SUCCESS) {
    return -1;
  }
  Vmm::instance().fail(call, nth, static_cast<CUresult>(result));
  return 0;
}

uint64_t kvstrata_vmm_forget_failures(int call) {
  return is_call(call) ? Vmm::instance().forget_failures(call) : 0;
}
