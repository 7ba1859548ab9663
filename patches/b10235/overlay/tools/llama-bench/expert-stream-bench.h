#pragma once

// The expert streaming options of llama-bench: lists, like its other parameters.

#include "llama-expert.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

inline bool operator==(const llama_expert_stream_params & a, const llama_expert_stream_params & b) {
    return a.enabled == b.enabled && (!a.enabled || (a.io == b.io && a.io_threads == b.io_threads && a.cache_size == b.cache_size &&
                a.keep_recent == b.keep_recent && a.fixation == b.fixation && a.prefetch == b.prefetch));
}

inline std::string bench_expert_stream_str(const llama_expert_stream_params & params) {
    if (!params.enabled) {
        return "off";
    }
    std::string result = llama_expert_io_name(params.io);
    if (params.io_threads > 0) {
        result += " threads=" + std::to_string(params.io_threads);
    }
    if (params.cache_size > 0) {
        result += " cache=" + std::to_string(params.cache_size >> 20);
    }
    if (params.keep_recent > 0) {
        result += " keep=" + std::to_string(params.keep_recent);
    }
    if (params.fixation > 0) {
        result += " fix=" + std::to_string(params.fixation);
    }
    return params.prefetch ? result + " prefetch" : result;
}

struct bench_expert_stream {
    struct option {
        const char * short_name;
        const char * name;
        const char * values; // for the usage
        uint64_t     max;

        std::vector<uint64_t> given; // empty: not on the command line
    };

    enum { ENABLED, IO, IO_THREADS, CACHE_SIZE, KEEP_RECENT, FIXATION, PREFETCH };

    std::vector<option> options = {
        { "-es",  "--expert-streaming",   "<0|1>",             1,                {} },
        { "-eio", "--expert-io",          "<auto|direct|mmap|fault>", UINT64_MAX, {} },
        { "-eit", "--expert-io-threads",  "<threads>",         256,              {} },
        { "-ecs", "--expert-cache-size",  "<MiB>",             UINT64_MAX >> 21, {} },
        { "-ekr", "--expert-keep-recent", "<experts>",         INT32_MAX,        {} },
        { "-ef",  "--expert-fixation",    "<passes>",          INT32_MAX,        {} },
        { "-ep",  "--expert-prefetch",    "<0|1>",             1,                {} },
    };

    static void print_usage() {
        for (const auto & o : bench_expert_stream().options) {
            printf("  %s, %-*s(default: %s)\n", o.short_name, (int) (40 - strlen(o.short_name)),
                    (std::string(o.name) + " " + o.values).c_str(), o.max == UINT64_MAX ? "auto" : "0");
        }
    }

    bool is_given() const {
        return std::any_of(options.begin(), options.end(), [](const option & o) { return !o.given.empty(); });
    }

    // takes argv[i] and its value when it is one of ours; a bad value ends the program
    bool parse_arg(int argc, char ** argv, int & i) {
        for (auto & o : options) {
            if (argv[i] != std::string(o.short_name) && argv[i] != std::string(o.name)) {
                continue;
            }
            std::stringstream list(i + 1 < argc ? argv[i + 1] : "");
            std::string text;
            uint64_t value;
            bool ok = false;
            while (std::getline(list, text, ',')) {
                ok = &o == &options[IO] ? parse_io(text, value) : parse_count(text, o.max, value);
                if (!ok) {
                    break;
                }
                o.given.push_back(value);
            }
            if (!ok) {
                fail("invalid parameter for argument: " + std::string(argv[i]));
            }
            i++;
            return true;
        }
        return false;
    }

    // every instance once per streaming setting; the setting varies slowest, since it reloads the model
    template <typename T>
    void expand(std::vector<T> & instances) const {
        if (!is_given()) {
            return;
        }
        std::vector<T> result;
        for (const auto & setting : settings()) {
            for (const auto & instance : instances) {
                result.push_back(instance);
                result.back().expert_stream = setting;
            }
        }
        instances = result;
    }

private:
    std::vector<uint64_t> values(int i) const {
        return options[i].given.empty() ? std::vector<uint64_t> { 0 } : options[i].given;
    }

    std::vector<llama_expert_stream_params> settings() const {
        std::vector<llama_expert_stream_params> result;
        bool is_any_on = false;
        for (const auto on : values(ENABLED)) {
            if (!on) {
                result.push_back(llama_expert_stream_default_params());
                continue;
            }
            is_any_on = true;
            for (const auto io   : values(IO))
            for (const auto n    : values(IO_THREADS))
            for (const auto size : values(CACHE_SIZE))
            for (const auto keep : values(KEEP_RECENT))
            for (const auto fix  : values(FIXATION))
            for (const auto pre  : values(PREFETCH)) {
                result.push_back({ true, (llama_expert_io) io, (uint32_t) n, size << 20, (uint32_t) keep, (uint32_t) fix, pre != 0 });
            }
        }
        const bool is_other_given = std::any_of(options.begin() + IO, options.end(), [](const option & o) { return !o.given.empty(); });
        if (is_other_given && !is_any_on) {
            fail("the --expert-* options have no effect without --expert-streaming 1");
        }
        return result;
    }

    static bool parse_io(const std::string & text, uint64_t & value) {
        llama_expert_io mode;
        if (!llama_expert_io_from_str(text.c_str(), &mode)) {
            return false;
        }
        value = mode;
        return true;
    }

    static bool parse_count(const std::string & text, uint64_t max, uint64_t & value) {
        if (text.empty() || text.size() > 19 || text.find_first_not_of("0123456789") != std::string::npos) {
            return false;
        }
        value = std::stoull(text);
        return value <= max;
    }

    [[noreturn]] static void fail(const std::string & why) {
        fprintf(stderr, "error: %s\n", why.c_str());
        exit(1);
    }
};
