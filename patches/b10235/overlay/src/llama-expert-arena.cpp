#include "llama-expert-arena.h"

#include "llama-impl.h"

#include "ggml.h"

#include <algorithm>
#include <cinttypes>
#include <stdexcept>

// slots per class: the classes get the budget as they share the bytes of the model, and nobody gets more than it has slices
static std::vector<uint64_t> divide(uint64_t max_bytes, const std::vector<llama_expert_slot_class> & classes) {
    std::vector<uint64_t> n(classes.size(), 1);
    uint64_t total = 0;
    uint64_t used  = 0;
    for (const auto & c : classes) {
        total += c.slot_size*c.n_slices;
        used  += c.slot_size;
    }
    if (used > max_bytes) {
        throw std::runtime_error(format("expert_stream: cache size of %.2f MiB holds no slice of each size: the floor is %" PRIu64 " MiB",
                    max_bytes/1024.0/1024.0, (used + 1024*1024 - 1)/1024/1024));
    }
    for (size_t i = 0; i < classes.size(); i++) {
        const auto & c = classes[i];
        const double share = std::min(1.0, (double) max_bytes/total)*c.n_slices;
        const uint64_t more = std::min<uint64_t>(std::max<uint64_t>(1, (uint64_t) share) - 1, (max_bytes - used)/c.slot_size);
        n[i] += more;
        used += more*c.slot_size;
    }
    for (size_t i = 0; i < classes.size(); i++) { // what rounding has left
        const auto & c = classes[i];
        const uint64_t more = std::min(c.n_slices - n[i], (max_bytes - used)/c.slot_size);
        n[i] += more;
        used += more*c.slot_size;
    }
    return n;
}

llama_expert_arena::llama_expert_arena(uint64_t max_bytes, const std::vector<llama_expert_slot_class> & classes) : lists(classes.size()) {
    const auto n = divide(max_bytes, classes);
    for (size_t i = 0; i < classes.size(); i++) {
        lists[i].n_slots = n[i];
        n_bytes += n[i]*classes[i].slot_size;
    }
    memory = std::make_unique<llama_expert_memory>(n_bytes);
    uint8_t * addr = memory->data();
    for (size_t i = 0; i < classes.size(); i++) {
        for (uint64_t k = 0; k < n[i]; k++) {
            llama_expert_slot slot;
            slot.addr       = addr;
            slot.slot_class = i;
            lists[i].unused.push_back(slots.size());
            slots.push_back(slot);
            addr += classes[i].slot_size;
        }
        std::reverse(lists[i].unused.begin(), lists[i].unused.end()); // taken from the end: low addresses first
    }
}

void llama_expert_arena::unlink(uint32_t id) {
    auto & s = slots[id];
    auto & l = lists[s.slot_class];
    GGML_ASSERT(s.is_listed);
    (s.prev == LLAMA_EXPERT_NONE ? l.first : slots[s.prev].next) = s.next;
    (s.next == LLAMA_EXPERT_NONE ? l.last  : slots[s.next].prev) = s.prev;
    s.prev = s.next = LLAMA_EXPERT_NONE;
    s.is_listed = false;
}

uint32_t llama_expert_arena::take(uint32_t slot_class) {
    auto & l = lists[slot_class];
    if (!l.unused.empty()) {
        const uint32_t id = l.unused.back();
        l.unused.pop_back();
        return id;
    }
    const uint32_t id = l.first;
    if (id != LLAMA_EXPERT_NONE) {
        unlink(id);
    }
    return id;
}

void llama_expert_arena::hold(uint32_t id) {
    if (slots[id].is_listed) {
        unlink(id);
    }
}

void llama_expert_arena::release_last(uint32_t id) {
    auto & s = slots[id];
    auto & l = lists[s.slot_class];
    hold(id);
    s.prev = l.last;
    (l.last == LLAMA_EXPERT_NONE ? l.first : slots[l.last].next) = id;
    l.last = id;
    s.is_listed = true;
}

void llama_expert_arena::release_first(uint32_t id) {
    auto & s = slots[id];
    auto & l = lists[s.slot_class];
    hold(id);
    s.next = l.first;
    (l.first == LLAMA_EXPERT_NONE ? l.last : slots[l.first].prev) = id;
    l.first = id;
    s.is_listed = true;
}

void llama_expert_arena::release_free(uint32_t id) {
    hold(id);
    slots[id].slice = LLAMA_EXPERT_NONE;
    lists[slots[id].slot_class].unused.push_back(id);
}
