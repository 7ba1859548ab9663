#pragma once

// Expert streaming: the model's side of include/llama-expert.h.
//
// One llama_expert_stream belongs to one model and lives as long as it does. What it knows of the file is filled in
// while the model loads and only read afterwards; what changes with use is behind a mutex or atomic, so contexts
// of the model may run in parallel. What belongs to one context is in llama-expert-context.h.
//
//   llama_expert_stream_init   before any tensor is created: checks the request, decides what streams
//   llama_expert_stream_buft   per tensor: routed experts stay in the mapping, never in a repacked copy
//   llama_expert_stream_start  after the data is in place: takes up the slices, asks for the other weights
//
// In direct mode the mapped bytes of the experts are never touched: llama-expert-direct.h has them.
//
// Every call is a no-op when the first argument is null, which is what a model that does not stream has.
//
// Relies on: routed experts are named blk.<n>.ffn_{gate,up,down,gate_up}_exps.weight, their third dimension
// is the expert, mapped tensors point into the mapping.

#include "llama-expert.h"
#include "llama-expert-cache.h"
#include "llama-expert-direct.h"
#include "llama-expert-io.h"

#include "ggml-backend.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

struct llama_hparams;
struct llama_model_loader;
struct llama_expert_prefetch;

// the one place that says which tensors hold routed experts; returns the layer, or -1
int llama_expert_tensor_layer(const char * name);

// the routed experts of one layer
struct llama_expert_layer {
    int64_t  n_expert;
    uint32_t first_unit; // in the cache

    std::vector<llama_expert_range> tensors;  // each n_expert slices, in the order of use
    std::vector<ggml_tensor *>      matrices; // the same
    std::vector<uint32_t>           first_slices; // of the same, in direct mode

    const ggml_tensor * down;
    const ggml_tensor * token_experts; // I32 [n_expert_used, n_vocab]: the experts of a token where no router chooses them, or null

    size_t slice_size(size_t i) const { return tensors[i].size/n_expert; }

    llama_expert_range slice(size_t i, int64_t expert) const;
};

// experts of a layer: 1 where the expert is meant
using llama_expert_set = std::vector<uint8_t>;

struct llama_expert_stream {
    llama_expert_stream(const llama_expert_stream_params & params, uint32_t n_expert_used);
    ~llama_expert_stream();

    llama_expert_stream(const llama_expert_stream &) = delete;
    llama_expert_stream & operator=(const llama_expert_stream &) = delete;

    // tensor->data must be the mapped bytes; fd and offs say where they are in the file
    void add_tensor(ggml_tensor * tensor, int fd, uint64_t offs);

    // after the last tensor; the other mapped weights have this many bytes
    void start(uint64_t other_bytes);

    const std::map<int, llama_expert_layer> & layers() const { return all_layers; }

    // the layer's share of a pass: counts, and takes the experts as present
    void use(const llama_expert_layer & layer, const uint8_t * is_needed);

    // asks for the slices of these experts, or for the share of one of several threads
    void hint(const llama_expert_layer & layer, const uint8_t * is_needed, int ith = 0, int nth = 1);

    // asks for the slices of these experts in the background, before the router has chosen
    void predict(const llama_expert_layer & layer, llama_expert_set experts);

    // from the prefetch thread
    void hint_predicted(const llama_expert_layer & layer, const llama_expert_set & experts);

    bool begin_pass(); // false: the pass must not be computed, only ended
    bool end_pass(); // false: experts could not be read, the results are of no use

    // until the background has caught up
    void drain();

    llama_expert_stream_stats stats() const;
    void reset_stats();

    llama_expert_stream_params params; // io is resolved before the first tensor is added

    const uint32_t n_expert_used;

private:
    // adds what is to be dropped of the experts [first, last), one range per tensor; with the mutex held
    void add_droppable(std::vector<llama_expert_range> & ranges, const llama_expert_layer & layer, int64_t first, int64_t last) const;
    void add_absent(std::vector<llama_expert_range> & ranges, const llama_expert_layer & layer) const;

    void end_pass_direct(); // with no thread in the pass

    int keep_fd(int fd);

    // the slices of these experts in direct mode, in the order of use
    static std::vector<uint32_t> slice_ids(const llama_expert_layer & layer, const uint8_t * is_meant);

    std::map<int, llama_expert_layer>       all_layers; // by index in the model
    std::vector<const llama_expert_layer *> layer_of_unit;
    std::unordered_map<int, int>            fds; // the loader's -> ours

    mutable std::mutex        mutex; // of what follows, up to the atomics
    llama_expert_cache        cache;
    std::vector<uint8_t>      is_predicted; // by unit, in this pass
    std::vector<uint32_t>     predicted;    // the units of is_predicted
    std::set<const llama_expert_layer *> missed; // layers with misses in this pass
    llama_expert_stream_stats counters = {};
    llama_expert_io_usage     usage_start;

    std::atomic<uint64_t> n_hinted    { 0 };
    std::atomic<uint64_t> hint_bytes  { 0 };
    std::atomic<uint64_t> hint_errors { 0 };

    // of the prefetch thread, since the model was loaded
    std::atomic<uint64_t>                n_prefetched { 0 };
    std::set<const llama_expert_layer *> prefetched_layers;

    std::unique_ptr<llama_expert_direct>   direct;
    std::unique_ptr<llama_expert_prefetch> prefetch; // last: its thread uses the rest
};

// null when params do not ask for streaming; throws when they ask for what cannot work
std::shared_ptr<llama_expert_stream> llama_expert_stream_init(
        const llama_model_params & params, const llama_hparams & hparams, llama_model_loader & ml);

ggml_backend_buffer_type_t llama_expert_stream_buft(
        const llama_expert_stream * stream, const ggml_tensor * tensor, ggml_backend_buffer_type_t buft);

void llama_expert_stream_start(
        llama_expert_stream * stream, const llama_model_loader & ml, const std::vector<std::pair<std::string, ggml_tensor *>> & tensors);
