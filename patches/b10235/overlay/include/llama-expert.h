#ifndef LLAMA_EXPERT_H
#define LLAMA_EXPERT_H

// Expert streaming: run a Mixture-of-Experts model whose routed experts stay in the model file.
// A routed expert is read when the router has chosen it; all other weights are loaded as usual.

#include "llama.h"

#define LLAMA_EXPERT_STREAM_VERSION 3

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

    enum llama_expert_io {
        LLAMA_EXPERT_IO_AUTO   = 0, // let the engine choose
        LLAMA_EXPERT_IO_MMAP   = 1, // mapped file, the chosen experts are read ahead at routing time
        LLAMA_EXPERT_IO_FAULT  = 2, // mapped file, demand paging only
        LLAMA_EXPERT_IO_DIRECT = 3, // memory of the engine's own, read past the page cache
    };

    struct llama_expert_stream_params {
        bool                 enabled;
        enum llama_expert_io io;
        uint32_t             io_threads;  // that read in direct mode, 0 = default
        uint64_t             cache_size;  // bytes of routed experts to keep after a pass, 0 = no limit; in direct mode at any time, 0 = what memory allows
        uint32_t             keep_recent; // experts to keep per layer after a pass, 0 = no limit
        uint32_t             fixation;    // passes that share the experts of their first, 0 = off
        bool                 prefetch;    // read experts that are known or likely to be needed, in the background
    };

    // counters since the model was loaded or they were reset, over all contexts of the model
    // a slice is one expert's part of one tensor
    struct llama_expert_stream_stats {
        uint64_t n_slices;         // slices tracked
        uint64_t n_passes;         // forward passes seen
        uint64_t n_routed;         // slices that those passes needed, each once per layer and pass
        uint64_t n_hits;           // of those, used before and not dropped since
        uint64_t n_misses;         // of those, the others
        uint64_t budget;           // bytes that routed experts may take, 0 = no limit
        uint64_t stall_us;         // time in which compute waited for slices (direct mode only: page faults are not timed)
        uint64_t n_io_errors;      // reads that failed (direct mode only)
        uint64_t n_hinted;         // slices whose bytes were asked for
        uint64_t hint_bytes;       // bytes asked for, whole pages
        uint64_t hint_errors;      // requests that the system refused
        uint64_t n_evicted;        // slices dropped to keep a limit
        uint64_t evicted_bytes;
        uint64_t resident_bytes;   // of slices used or prefetched and not dropped since (the system may have dropped more)
        uint64_t n_predicted;      // slices asked for before the router chose
        uint64_t n_predicted_used; // of those, chosen in the same pass
        uint64_t n_predicted_lost; // of those, not chosen
        uint64_t read_bytes;       // bytes that the process made the storage read (0 where not known)
        uint64_t major_faults;     // page faults that waited for the storage (0 where not known)
    };

    LLAMA_API struct llama_expert_stream_params llama_expert_stream_default_params(void);

    LLAMA_API const char * llama_expert_io_name(enum llama_expert_io io);

    // returns false and leaves io alone when str names no mode
    LLAMA_API bool llama_expert_io_from_str(const char * str, enum llama_expert_io * io);

    // returns false when the model does not stream
    LLAMA_API bool llama_expert_stream_get_stats(const struct llama_model * model, struct llama_expert_stream_stats * stats);

    LLAMA_API void llama_expert_stream_reset_stats(const struct llama_model * model);

#ifdef __cplusplus
}
#endif

#endif // LLAMA_EXPERT_H
