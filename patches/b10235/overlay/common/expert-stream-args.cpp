#include "expert-stream-args.h"

#include "common.h"
#include "log.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

// The engine's statistics are the last lines of a program, and the logger drops what is still queued at exit.
// On Windows its thread is gone by then and waiting for it would hang.
static void flush_log_at_exit() {
#ifndef _WIN32
    static const int registered = std::atexit([]() { common_log_flush(common_log_main()); });
    (void) registered;
#endif
}

// The common logger has one threshold for the terminal and its file; this copies the library's lines, at once.
// Without debug lines: they come with every pass, and a server runs for days.
static void log_to_file_too(ggml_log_level level, const char * text, void * file) {
    if (level != GGML_LOG_LEVEL_DEBUG) {
        fputs(text, (FILE *) file);
        fflush((FILE *) file);
    }
    common_log_default_callback(level, text, nullptr);
}

// digits only: std::stoi would take "1x" and wrap what is too large
static uint64_t parse_count(const std::string & value, uint64_t max) {
    if (value.empty() || value.size() > 19 || value.find_first_not_of("0123456789") != std::string::npos || std::stoull(value) > max) {
        throw std::invalid_argument("invalid value");
    }
    return std::stoull(value);
}

void common_expert_stream_add_args(const std::function<void(common_arg)> & add_opt) {
    add_opt(common_arg(
        {"--expert-streaming"},
        "leave the routed experts of a Mixture-of-Experts model in the mapped file and read those that the router chooses (default: disabled)",
        [](common_params & params) {
            params.expert_stream.enabled = true;
            flush_log_at_exit();
        }
    ).set_env("LLAMA_ARG_EXPERT_STREAMING"));
    add_opt(common_arg(
        {"--expert-io"}, "MODE",
        "how streamed experts are read (default: auto)\n"
        "- auto: direct or mmap, by the sizes of the experts and of memory\n"
        "- direct: memory of its own of a fixed size, filled past the page cache\n"
        "- mmap: mapped file, the chosen experts are read ahead at routing time\n"
        "- fault: mapped file, demand paging only",
        [](common_params & params, const std::string & value) {
            if (!llama_expert_io_from_str(value.c_str(), &params.expert_stream.io)) {
                throw std::invalid_argument("invalid value");
            }
        }
    ).set_env("LLAMA_ARG_EXPERT_IO"));
    add_opt(common_arg(
        {"--expert-cache-size"}, "N",
        "MiB of streamed experts that stay in memory, those used last (default: 0 = no limit, in direct mode what memory allows)",
        [](common_params & params, const std::string & value) {
            params.expert_stream.cache_size = parse_count(value, UINT64_MAX >> 21) << 20;
        }
    ).set_env("LLAMA_ARG_EXPERT_CACHE_SIZE"));
    add_opt(common_arg(
        {"--expert-io-threads"}, "N",
        "threads that read streamed experts in direct mode (default: 0 = auto)",
        [](common_params & params, const std::string & value) {
            params.expert_stream.io_threads = parse_count(value, 256);
        }
    ).set_env("LLAMA_ARG_EXPERT_IO_THREADS"));
    add_opt(common_arg(
        {"--expert-keep-recent"}, "N",
        "streamed experts per layer that stay in memory after a forward pass, those used last (default: 0 = no limit)",
        [](common_params & params, const std::string & value) {
            params.expert_stream.keep_recent = parse_count(value, INT32_MAX);
        }
    ).set_env("LLAMA_ARG_EXPERT_KEEP_RECENT"));
    add_opt(common_arg(
        {"--expert-fixation"}, "N",
        "share the experts of a forward pass with the N-1 passes after it; changes the answers (default: 0 = off)",
        [](common_params & params, const std::string & value) {
            params.expert_stream.fixation = parse_count(value, INT32_MAX);
        }
    ).set_env("LLAMA_ARG_EXPERT_FIXATION"));
    add_opt(common_arg(
        {"--expert-prefetch"},
        "read streamed experts that are known or likely to be needed in the background (default: disabled)",
        [](common_params & params) {
            params.expert_stream.prefetch = true;
        }
    ).set_env("LLAMA_ARG_EXPERT_PREFETCH"));
    add_opt(common_arg(
        {"--expert-log"}, "FNAME",
        "write the log of the library, with the lines of expert streaming, to this file too, whatever the verbosity",
        [](common_params & /*params*/, const std::string & value) {
            FILE * file = ggml_fopen(value.c_str(), "w"); // open until the program ends
            if (!file) {
                throw std::invalid_argument("cannot open the file");
            }
            llama_log_set(log_to_file_too, file);
        }
    ).set_env("LLAMA_ARG_EXPERT_LOG"));
}
