#pragma once

// Which experts are taken to be in memory, in the order of their last use.
// A unit is one expert of one layer: its slices are used and dropped together.

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

struct llama_expert_cache {
    // returns the number of the first of n_units units of unit_size bytes in a new layer
    uint32_t add_layer(uint32_t n_units, size_t unit_size);

    bool contains(uint32_t unit) const;

    // marks the unit as present and used last; constant time
    void touch(uint32_t unit);

    // drops the units used longest ago until the limits hold (0 = no limit), and returns them; constant time for each
    std::vector<uint32_t> evict(uint64_t max_bytes, uint32_t max_units_per_layer);

    uint64_t bytes() const { return n_bytes; }

private:
    struct layer {
        size_t              unit_size;
        std::list<uint32_t> order; // of the present units, used last comes first
    };

    struct unit {
        uint32_t layer;
        bool     present;

        std::list<uint32_t>::iterator in_all;
        std::list<uint32_t>::iterator in_layer;
    };

    void drop(uint32_t id);

    std::vector<layer>  layers;
    std::vector<unit>   units;
    std::list<uint32_t> order;
    uint64_t            n_bytes = 0;
};
