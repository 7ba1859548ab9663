#include "expert-stream-args.h"

#include "common.h"
#include "log.h"

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
        "- auto: mmap\n"
        "- mmap: mapped file, the chosen experts are read ahead at routing time\n"
        "- fault: mapped file, demand paging only",
        [](common_params & params, const std::string & value) {
            if (!llama_expert_io_from_str(value.c_str(), &params.expert_stream.io)) {
                throw std::invalid_argument("invalid value");
            }
        }
    ).set_env("LLAMA_ARG_EXPERT_IO"));
}
