#pragma once

// Where the CPU backend finds an expert's matrix that is not at data + expert*nb[2].
//
// Relies on: a plain CPU buffer leaves the extra of its tensors alone, so it is ours to set; the bytes at data
// stay valid too (whoever does not know of this reads them there).

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

    // the extra of a tensor with streamed experts
    struct ggml_expert_slices {
        // the bytes of one expert, waiting until they are there; valid until the same thread asks again in this graph
        const char * (*get)(const struct ggml_expert_slices * slices, int64_t expert, int ith, int nth);

        // all experts, those first that need not be waited for; null = as they are numbered
        const int32_t * order;
    };

    // addr is where the bytes are otherwise
    static inline const char * ggml_expert_slice(const struct ggml_tensor * tensor, int64_t expert, const char * addr, int ith, int nth) {
        const struct ggml_expert_slices * slices = (const struct ggml_expert_slices *) tensor->extra;
        return slices ? slices->get(slices, expert, ith, nth) : addr;
    }

    // the expert to compute in the i-th place: their rows of the result are apart, so any order gives the same
    static inline int ggml_expert_in_order(const struct ggml_tensor * tensor, int i) {
        const struct ggml_expert_slices * slices = (const struct ggml_expert_slices *) tensor->extra;
        return slices && slices->order ? slices->order[i] : i;
    }

#ifdef __cplusplus
}
#endif
