#pragma once

// Expert streaming: the model's side of include/llama-expert.h.
//
// One llama_expert_stream belongs to one model and lives as long as it does. It is filled while the model
// loads and only read afterwards, but for the counters, so contexts of the model may run in parallel.
//
//   llama_expert_stream_init     before any tensor is created: checks the request, decides what streams
//   llama_expert_stream_buft     per tensor: routed experts stay in the mapping, never in a repacked copy
//   llama_expert_stream_start    after the data is in place: takes up the slices, asks for the other weights
//   llama_expert_stream_observe  per MoE layer while a graph is built: one node after top-k
//
// Every call is a no-op when the first argument is null, which is what a model that does not stream has.
//
// Relies on: routed experts are named blk.<n>.ffn_{gate,up,down,gate_up}_exps.weight, their third dimension
// is the expert, mapped tensors point into the mapping, the CPU backend runs custom nodes in graph order.

#include "llama-expert.h"
#include "llama-expert-io.h"

#include "ggml-backend.h"

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

struct llama_model_loader;

// the one place that says which tensors hold routed experts; returns the layer, or -1
int llama_expert_tensor_layer(const char * name);

struct llama_expert_stream {
    explicit llama_expert_stream(llama_expert_io io);
    ~llama_expert_stream();

    llama_expert_stream(const llama_expert_stream &) = delete;
    llama_expert_stream & operator=(const llama_expert_stream &) = delete;

    // tensor->data must be the mapped bytes; fd and offs say where they are in the file
    void add_tensor(const ggml_tensor * tensor, int fd, uint64_t offs);

    // adds the observer node for the experts chosen in ids [n_expert_used, n_tokens], returns what to use instead of ids
    ggml_tensor * observe(ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps) const;

    llama_expert_stream_stats stats() const;

    const llama_expert_io io;

private:
    struct layer {
        const llama_expert_stream * stream;

        bool    is_first; // counts the passes
        int64_t n_expert;

        std::vector<llama_expert_range> tensors; // each n_expert slices, in the order of use
    };

    static void observe_op(ggml_tensor * dst, const ggml_tensor * ids, int ith, int nth, void * userdata);

    // this thread's share of the needed slices
    void hint(const layer & l, const uint8_t * is_needed, int ith, int nth) const;

    // one file descriptor per model file, kept only where hints need it
    int keep_fd(int fd);

    std::vector<std::unique_ptr<layer>>              layers;
    std::unordered_map<const ggml_tensor *, layer *> layer_of_down; // by the tensor that every MoE layer has
    std::unordered_map<int, layer *>                 layer_of_index;
    std::unordered_map<int, int>                     fds; // loader's -> ours

    llama_expert_io_usage usage_start = { 0, 0 };

    uint64_t n_slices = 0;

    mutable std::atomic<uint64_t> n_passes    { 0 };
    mutable std::atomic<uint64_t> n_routed    { 0 };
    mutable std::atomic<uint64_t> n_hinted    { 0 };
    mutable std::atomic<uint64_t> hint_bytes  { 0 };
    mutable std::atomic<uint64_t> hint_errors { 0 };
};

// null when params do not ask for streaming; throws when they ask for what cannot work
std::shared_ptr<llama_expert_stream> llama_expert_stream_init(const llama_model_params & params, llama_model_loader & ml);

ggml_backend_buffer_type_t llama_expert_stream_buft(
        const llama_expert_stream * stream, const ggml_tensor * tensor, ggml_backend_buffer_type_t buft);

void llama_expert_stream_start(
        llama_expert_stream * stream, const llama_model_loader & ml, const std::vector<std::pair<std::string, ggml_tensor *>> & tensors);

ggml_tensor * llama_expert_stream_observe(
        const llama_expert_stream * stream, ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps);
