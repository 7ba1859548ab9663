#pragma once

// The expert streaming options of llama-bench: lists, like its other parameters.

#include "llama-expert.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

inline bool operator==(const llama_expert_stream_params & a, const llama_expert_stream_params & b) {
    return a.enabled == b.enabled && (!a.enabled || a.io == b.io);
}

inline std::string bench_expert_stream_str(const llama_expert_stream_params & params) {
    return params.enabled ? llama_expert_io_name(params.io) : "off";
}

struct bench_expert_stream {
    std::vector<bool>            enabled; // empty: not given
    std::vector<llama_expert_io> io;

    static void print_usage() {
        printf("  -es, --expert-streaming <0|1>               (default: 0)\n");
        printf("  -eio, --expert-io <auto|mmap|fault>         (default: auto)\n");
    }

    bool is_given() const {
        return !enabled.empty() || !io.empty();
    }

    // takes argv[i] and its value when it is one of ours; a bad value ends the program
    bool parse_arg(int argc, char ** argv, int & i) {
        const std::string arg = argv[i];
        const bool is_enabled = arg == "-es"  || arg == "--expert-streaming";
        const bool is_io      = arg == "-eio" || arg == "--expert-io";
        if (!is_enabled && !is_io) {
            return false;
        }
        std::stringstream values(++i < argc ? argv[i] : "");
        std::string value;
        size_t n_values = 0;
        while (std::getline(values, value, ',')) {
            llama_expert_io mode;
            if (is_enabled && (value == "0" || value == "1")) {
                enabled.push_back(value == "1");
            } else if (is_io && llama_expert_io_from_str(value.c_str(), &mode)) {
                io.push_back(mode);
            } else {
                n_values = 0;
                break;
            }
            n_values++;
        }
        if (n_values == 0) {
            fprintf(stderr, "error: invalid parameter for argument: %s\n", arg.c_str());
            exit(1);
        }
        return true;
    }

    // every instance once per streaming setting; the setting varies slowest, since it reloads the model
    template <typename T>
    void expand(std::vector<T> & instances) const {
        if (!is_given()) {
            return;
        }
        if (!io.empty() && std::find(enabled.begin(), enabled.end(), true) == enabled.end()) {
            fprintf(stderr, "error: --expert-io has no effect without --expert-streaming 1\n");
            exit(1);
        }
        std::vector<llama_expert_stream_params> settings;
        for (const bool on : enabled) {
            for (const auto mode : on && !io.empty() ? io : std::vector<llama_expert_io> { LLAMA_EXPERT_IO_AUTO }) {
                settings.push_back({ on, mode });
            }
        }
        std::vector<T> result;
        for (const auto & setting : settings) {
            for (const auto & instance : instances) {
                result.push_back(instance);
                result.back().expert_stream = setting;
            }
        }
        instances = result;
    }
};
