#pragma once

// Memory for streamed experts: how much there is, and a block of it.

#include <cstddef>
#include <cstdint>

// Bytes that this process can still take before something has to be swapped or killed: what the system has left, and
// no more than its memory control group (Linux, versions 1 and 2) allows beyond what cannot be given back.
// 0 where the system does not say.
uint64_t llama_expert_memory_available();

// zeroed pages that take memory when they are first written to
struct llama_expert_memory {
    explicit llama_expert_memory(size_t size); // throws when there are none
    ~llama_expert_memory();

    llama_expert_memory(const llama_expert_memory &) = delete;
    llama_expert_memory & operator=(const llama_expert_memory &) = delete;

    uint8_t * data() const { return addr; }

private:
    uint8_t * addr;
    size_t    size;
};
