// SPDX-License-Identifier: Apache-2.0
// How tests read and steer the stand-in; kvstrata_host.vmm is the same from Python.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum kvstrata_vmm_call {
  KVSTRATA_VMM_RESERVE,
  KVSTRATA_VMM_ADDRESS_FREE,
  KVSTRATA_VMM_CREATE,
  KVSTRATA_VMM_RELEASE,
  KVSTRATA_VMM_MAP,
  KVSTRATA_VMM_UNMAP,
  KVSTRATA_VMM_SET_ACCESS,
  KVSTRATA_VMM_MEMORY_INFO,
  KVSTRATA_VMM_SYNCHRONIZE,
  KVSTRATA_VMM_CALLS,
};

struct kvstrata_vmm_state {
  uint64_t calls[KVSTRATA_VMM_CALLS];    // since the process started, failed ones too
  uint64_t failures[KVSTRATA_VMM_CALLS]; // for whatever reason
  uint64_t budget_bytes;
  uint64_t created_bytes;   // physical memory that is neither released nor unmapped
  uint64_t allocations;     // the same, counted
  uint64_t mapped_bytes;    // virtual ranges that have physical memory behind them
  uint64_t reserved_bytes;  // virtual ranges
  uint64_t committed_bytes; // physical memory that was touched, as the kernel counts it
};

// Returns 0, or -1 if `size` is not that of the structure.
int kvstrata_vmm_read(kvstrata_vmm_state *state, size_t size);

// May be less than what is in use: then nothing is free until enough was given back.
void kvstrata_vmm_set_budget(uint64_t bytes);

// Call number `nth` from now, at least 1, does nothing and returns `result`. Returns 0, or -1
// for an unknown call, an `nth` of 0 or a `result` of 0.
int kvstrata_vmm_fail(int call, uint64_t nth, int result);

// Forgets the failures of `call` that have not come yet; returns how many there were.
uint64_t kvstrata_vmm_forget_failures(int call);

} // extern "C"
