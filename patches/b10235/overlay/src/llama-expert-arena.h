#pragma once

// Slots for slices, all in one block of memory of a fixed size. A slot is as large as the slices of its class, so no
// slice moves another of a different size out and nothing is ever allocated again. The arena decides what
// goes when room is needed; it does not read and does not wait.

#include "llama-expert-memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

constexpr uint32_t LLAMA_EXPERT_NONE = UINT32_MAX;

// how many slices the model has that take slots of this size
struct llama_expert_slot_class {
    size_t   slot_size;
    uint64_t n_slices;
};

struct llama_expert_slot {
    uint8_t * addr;
    uint32_t  slot_class;
    uint32_t  slice = LLAMA_EXPERT_NONE; // what is in it

    // neighbours in the order of eviction of its class, while it is in there
    uint32_t prev     = LLAMA_EXPERT_NONE;
    uint32_t next     = LLAMA_EXPERT_NONE;
    bool     is_listed = false;
};

struct llama_expert_arena {
    // divides max_bytes among the classes by the bytes of their slices, at least one slot each;
    // throws when not even that fits
    llama_expert_arena(uint64_t max_bytes, const std::vector<llama_expert_slot_class> & classes);

    // Takes a free slot, or the one that is first to go; its slice is still in it for the caller to forget.
    // The slot is not evictable until it is released. LLAMA_EXPERT_NONE when there is no such slot.
    uint32_t take(uint32_t slot_class);

    void hold(uint32_t slot); // not evictable until it is released

    void release_last (uint32_t slot); // evictable, last to go
    void release_first(uint32_t slot); // evictable, first to go
    void release_free (uint32_t slot); // its slice is of no use

    llama_expert_slot       & operator[](uint32_t slot)       { return slots[slot]; }
    const llama_expert_slot & operator[](uint32_t slot) const { return slots[slot]; }

    uint32_t n_slots() const { return slots.size(); }
    uint32_t n_slots(uint32_t slot_class) const { return lists[slot_class].n_slots; }
    uint64_t bytes() const { return n_bytes; }

private:
    struct list {
        uint32_t first = LLAMA_EXPERT_NONE; // to go
        uint32_t last  = LLAMA_EXPERT_NONE;

        uint32_t n_slots = 0;

        std::vector<uint32_t> unused;
    };

    void unlink(uint32_t slot);

    std::vector<llama_expert_slot> slots;
    std::vector<list>              lists; // by class
    uint64_t                       n_bytes = 0;

    std::unique_ptr<llama_expert_memory> memory;
};
