// SPDX-License-Identifier: Apache-2.0
// What kvcached calls of CUDA's runtime API, over host memory; see vmm.cpp for the contract.
#pragma once

#include <cstddef>

extern "C" {

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorUnknown = 999,
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaDeviceSynchronize();

} // extern "C"
