#pragma once

// What differs between the llama.cpp versions this is built into. Each helper takes what the version at hand has.

#include "llama.h"

#include <cstdint>
#include <cstring>

// the most experts a token uses in a layer: a number of the model, later one per layer
template <typename T>
auto llama_expert_n_used(const T & hparams, int) -> decltype((uint32_t) hparams.n_expert_used_max()) {
    return hparams.n_expert_used_max();
}

template <typename T>
auto llama_expert_n_used(const T & hparams, long) -> decltype((uint32_t) hparams.n_expert_used) {
    return hparams.n_expert_used;
}

template <typename T>
uint32_t llama_expert_n_used(const T & hparams) {
    return llama_expert_n_used(hparams, 0);
}

// a mode "auto" came later, and maps the file where that is possible
inline bool llama_expert_may_map(llama_load_mode mode) {
    return mode == LLAMA_LOAD_MODE_MMAP || strcmp(llama_load_mode_name(mode), "auto") == 0;
}
