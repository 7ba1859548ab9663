#include "expert-stream-args.h"

#include "common.h"

#include <stdexcept>

void common_expert_stream_add_args(const std::function<void(common_arg)> & add_opt) {
    add_opt(common_arg(
        {"--expert-streaming"},
        "leave the routed experts of a Mixture-of-Experts model in the mapped file and read those that the router chooses (default: disabled)",
        [](common_params & params) {
            params.expert_stream.enabled = true;
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
