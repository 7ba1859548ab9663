#ifndef LLAMA_EXPERT_H
#define LLAMA_EXPERT_H

// Expert streaming: run a Mixture-of-Experts model whose routed experts stay in the model file.
// A routed expert is read when the router has chosen it; all other weights are loaded as usual.

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

    enum llama_expert_io {
        LLAMA_EXPERT_IO_AUTO  = 0, // let the engine choose
        LLAMA_EXPERT_IO_MMAP  = 1, // mapped file, the chosen experts are read ahead at routing time
        LLAMA_EXPERT_IO_FAULT = 2, // mapped file, demand paging only
    };

    struct llama_expert_stream_params {
        bool                 enabled;
        enum llama_expert_io io;
    };

    // counters since the model was loaded, over all contexts of the model
    struct llama_expert_stream_stats {
        uint64_t n_slices;     // slices tracked; a slice is one expert's part of one tensor
        uint64_t n_passes;     // forward passes seen
        uint64_t n_routed;     // slices that those passes needed, each once per layer and pass
        uint64_t n_hinted;     // slices whose bytes were asked for at routing time
        uint64_t hint_bytes;   // bytes asked for, whole pages
        uint64_t hint_errors;  // requests that the system refused
        uint64_t read_bytes;   // bytes that the process made the storage read (0 where not known)
        uint64_t major_faults; // page faults that waited for the storage (0 where not known)
    };

    LLAMA_API struct llama_expert_stream_params llama_expert_stream_default_params(void);

    LLAMA_API const char * llama_expert_io_name(enum llama_expert_io io);

    // returns false and leaves io alone when str names no mode
    LLAMA_API bool llama_expert_io_from_str(const char * str, enum llama_expert_io * io);

    // returns false when the model does not stream
    LLAMA_API bool llama_expert_stream_get_stats(const struct llama_model * model, struct llama_expert_stream_stats * stats);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_EXPERT_H
