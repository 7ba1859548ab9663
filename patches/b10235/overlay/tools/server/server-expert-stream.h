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
        { "io_threads",  params.io_threads },
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
        double       value;
    } metrics[] = {
        { "slices_routed_total",  "counter", "Expert slices that forward passes needed.",                      (double) s.n_routed         },
        { "hits_total",           "counter", "Of those, used before and not dropped since.",                   (double) s.n_hits           },
        { "misses_total",         "counter", "Of those, the others.",                                          (double) s.n_misses         },
        { "hinted_total",         "counter", "Slices that were asked for.",                                    (double) s.n_hinted         },
        { "hint_bytes_total",     "counter", "Bytes that were asked for.",                                     (double) s.hint_bytes       },
        { "hint_errors_total",    "counter", "Requests that the system refused.",                              (double) s.hint_errors      },
        { "evicted_total",        "counter", "Slices dropped to keep a limit.",                                (double) s.n_evicted        },
        { "predicted_total",      "counter", "Slices asked for before the router chose.",                      (double) s.n_predicted      },
        { "predicted_used_total", "counter", "Of those, chosen in the same pass.",                             (double) s.n_predicted_used },
        { "read_bytes_total",     "counter", "Bytes that the process made the storage read.",                  (double) s.read_bytes       },
        { "major_faults_total",   "counter", "Page faults that waited for the storage.",                       (double) s.major_faults     },
        { "stall_seconds_total",  "counter", "Time in which compute waited for slices (direct mode).",         s.stall_us/1e6 },
        { "io_errors_total",      "counter", "Reads that failed (direct mode).",                              (double) s.n_io_errors },
        { "budget_bytes",         "gauge",   "Memory that slices may take, 0 = no limit.",                     (double) s.budget },
        { "resident_bytes",       "gauge",   "Bytes of slices used or prefetched and not dropped since.",      (double) s.resident_bytes   },
    };
    std::ostringstream out;
    out.precision(17); // counters of bytes as whole numbers
    for (const auto & m : metrics) {
        out << "# HELP llamacpp:expert_" << m.name << " " << m.help  << "\n"
            << "# TYPE llamacpp:expert_" << m.name << " " << m.type  << "\n"
            << "llamacpp:expert_"        << m.name << " " << m.value << "\n";
    }
    return out.str();
}
