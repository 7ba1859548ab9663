#include "llama-expert-cache.h"

uint32_t llama_expert_cache::add_layer(uint32_t n_units, size_t unit_size) {
    const uint32_t first = units.size();
    units.resize(first + n_units, { (uint32_t) layers.size(), false, {}, {} });
    layers.push_back({ unit_size, {} });
    return first;
}

bool llama_expert_cache::contains(uint32_t id) const {
    return units[id].present;
}

void llama_expert_cache::touch(uint32_t id) {
    auto & u = units[id];
    auto & l = layers[u.layer];
    if (u.present) {
        order.splice(order.begin(), order, u.in_all);
        l.order.splice(l.order.begin(), l.order, u.in_layer);
        return;
    }
    u.present  = true;
    u.in_all   = order.insert(order.begin(), id);
    u.in_layer = l.order.insert(l.order.begin(), id);
    n_bytes += l.unit_size;
}

void llama_expert_cache::drop(uint32_t id) {
    auto & u = units[id];
    auto & l = layers[u.layer];
    u.present = false;
    order.erase(u.in_all);
    l.order.erase(u.in_layer);
    n_bytes -= l.unit_size;
}

std::vector<uint32_t> llama_expert_cache::evict(uint64_t max_bytes, uint32_t max_units_per_layer) {
    std::vector<uint32_t> dropped;
    if (max_units_per_layer > 0) {
        for (auto & l : layers) {
            while (l.order.size() > max_units_per_layer) {
                dropped.push_back(l.order.back());
                drop(dropped.back());
            }
        }
    }
    if (max_bytes > 0) {
        while (n_bytes > max_bytes) {
            dropped.push_back(order.back());
            drop(dropped.back());
        }
    }
    return dropped;
}
