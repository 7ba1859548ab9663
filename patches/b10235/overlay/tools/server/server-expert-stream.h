#pragma once

// What llama-server tells about expert streaming.

#include "llama-expert.h"

#include "server-common.h"

#include <sstream>
#include <string>

// for /props
inline json server_expert_stream_props(const llama_expert_stream_params & params) {
    return {
        { "io",          llama_expert_io_name(params.io) },
        { "cache_size",  params.cache_size },
        { "keep_recent", params.keep_recent },
        { "fixation",    params.fixation },
        { "prefetch",    params.prefetch },
    };
}

// for /metrics; empty when the model does not stream
inline std::string server_expert_stream_metrics(const llama_model * model) {
    llama_expert_stream_stats s;
    if (!model || !llama_expert_stream_get_stats(model, &s)) {
        return "";
    }
    const struct {
        const char * name;
        const char * type;
        const char * help;
        uint64_t     value;
    } metrics[] = {
        { "slices_routed_total",  "counter", "Expert slices that forward passes needed.",                      s.n_routed         },
        { "hits_total",           "counter", "Of those, used before and not dropped since.",                   s.n_hits           },
        { "misses_total",         "counter", "Of those, the others.",                                          s.n_misses         },
        { "hinted_total",         "counter", "Slices that were asked for.",                                    s.n_hinted         },
        { "hint_bytes_total",     "counter", "Bytes that were asked for.",                                     s.hint_bytes       },
        { "hint_errors_total",    "counter", "Requests that the system refused.",                              s.hint_errors      },
        { "evicted_total",        "counter", "Slices dropped to keep a limit.",                                s.n_evicted        },
        { "predicted_total",      "counter", "Slices asked for before the router chose.",                      s.n_predicted      },
        { "predicted_used_total", "counter", "Of those, chosen in the same pass.",                             s.n_predicted_used },
        { "read_bytes_total",     "counter", "Bytes that the process made the storage read.",                  s.read_bytes       },
        { "major_faults_total",   "counter", "Page faults that waited for the storage.",                       s.major_faults     },
        { "resident_bytes",       "gauge",   "Bytes of slices used or prefetched and not dropped since.",      s.resident_bytes   },
    };
    std::ostringstream out;
    for (const auto & m : metrics) {
        out << "# HELP llamacpp:expert_" << m.name << " " << m.help  << "\n"
            << "# TYPE llamacpp:expert_" << m.name << " " << m.type  << "\n"
            << "llamacpp:expert_"        << m.name << " " << m.value << "\n";
    }
    return out.str();
}
