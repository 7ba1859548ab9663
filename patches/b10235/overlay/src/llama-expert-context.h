#pragma once

// Expert streaming: one context's side. It adds the observer to the graphs of its context and keeps what the router
// chose where a later pass uses it.
//
//   llama_expert_context_init  when the context is made; throws when it cannot work as asked
//   ..._warmup                 around warm-ups
//   llama_expert_pass          around the computation of a graph
//   ..._observe                per MoE layer while a graph is built: one node after top-k
//
// Every call is a no-op when the first argument is null.
//
// Relies on: the CPU backend runs custom nodes in graph order and on every thread, one pass at a time per context;
// every MoE layer has a down tensor.

#include "llama-expert-stream.h"

struct llama_cparams;
struct llama_model;

struct llama_expert_context {
    explicit llama_expert_context(llama_expert_stream & stream);

    // adds the observer node for the experts chosen in ids [n_expert_used, n_tokens], returns what to use instead of ids
    ggml_tensor * observe(ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps);

    // tokens may be null: a batch of embeddings
    bool begin_pass(const int32_t * tokens, uint32_t n_tokens); // false: the pass must not be computed, only ended
    bool end_pass(); // false: experts could not be read, the results are of no use

    // how many nodes a graph of this context has more
    uint32_t n_nodes() const { return nodes.size(); }

    bool is_warmup = false;

private:
    struct node {
        llama_expert_context     * context;
        const llama_expert_layer * layer;
        const llama_expert_layer * next; // the layer after it, or null

        // fixation: what the first pass of the window chose, [n_used, n_tokens]
        int64_t              n_used   = 0;
        int64_t              n_tokens = 0;
        std::vector<int32_t> ids;
    };

    static void observe_op(ggml_tensor * dst, const ggml_tensor * ids, int ith, int nth, void * userdata);

    void predict_from_tokens(const int32_t * tokens, uint32_t n_tokens);

    llama_expert_stream & stream;

    std::unordered_map<const ggml_tensor *, node> nodes; // by down tensor; filled once

    uint32_t pass_of_window = 0; // 1 = the one that records, 0 = outside of a window
};

std::shared_ptr<llama_expert_context> llama_expert_context_init(const llama_model & model, const llama_cparams & cparams);

// returns what the context's own warm-up flag has to be: a warm-up with all experts would read the whole file
bool llama_expert_context_warmup(llama_expert_context * context, bool value);

// from here to the end of its life, or of the call of end()
struct llama_expert_pass {
    llama_expert_pass(llama_expert_context * context, const int32_t * tokens, uint32_t n_tokens);
    ~llama_expert_pass();

    llama_expert_pass(const llama_expert_pass &) = delete;
    llama_expert_pass & operator=(const llama_expert_pass &) = delete;

    // false: do not compute, a file of the model is no longer what it was
    bool may_run() const { return is_begun; }

    // false: experts could not be read, the results are of no use
    bool end();

private:
    llama_expert_context * context; // null when it has ended
    bool                   is_begun = true;
};

uint32_t llama_expert_context_n_nodes(const llama_expert_context * context);

ggml_tensor * llama_expert_context_observe(
        llama_expert_context * context, ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps);
