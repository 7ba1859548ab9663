#include "llama-expert-context.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

llama_expert_context::llama_expert_context(llama_expert_stream & stream) : stream(stream) {
    const auto & layers = stream.layers();
    for (auto it = layers.begin(); it != layers.end(); ++it) {
        const auto next = std::next(it);
        auto & n = nodes[it->second.down];
        n.context = this;
        n.layer   = &it->second;
        n.next    = next == layers.end() ? nullptr : &next->second;
    }
}

ggml_tensor * llama_expert_context::observe(ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps) {
    const auto it = nodes.find(down_exps);
    if (it == nodes.end()) {
        return ids;
    }
    ggml_tensor * result = ggml_map_custom1(ctx, ids, observe_op, GGML_N_TASKS_MAX, &it->second);
    ggml_format_name(result, "%s_observed", ids->name);
    return result;
}

// runs on every thread of the pool at once, each with its own ith
void llama_expert_context::observe_op(ggml_tensor * dst, const ggml_tensor * ids, int ith, int nth, void * userdata) {
    GGML_ASSERT(ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t) && ids->ne[2] == 1 && ids->ne[3] == 1);

    node       & n      = *(node *) userdata;
    const auto & l      = *n.layer;
    const auto & c      = *n.context;
    auto       & stream = c.stream;

    const int64_t n_used   = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];

    // experts of a token that no router chooses are never wrong, so never pinned
    const bool has_window = stream.params.fixation > 0 && !c.is_warmup && !l.token_experts;
    const bool is_record  = has_window && c.pass_of_window == 1;
    const bool is_pinned  = has_window && c.pass_of_window > 1 && n.n_used == n_used && n.n_tokens == n_tokens;

    if (ith == 0 && is_record) {
        n.n_used   = n_used;
        n.n_tokens = n_tokens;
        n.ids.resize(n_used*n_tokens);
    }

    uint8_t is_needed[LLAMA_MAX_EXPERTS] = { 0 };

    // ids is a view into the full sort: its rows are further apart than they are long
    for (int64_t i1 = 0; i1 < n_tokens; i1++) {
        const int32_t * row = is_pinned ? &n.ids[i1*n_used] : (const int32_t *) ((const char *) ids->data + i1*ids->nb[1]);
        for (int64_t i0 = 0; i0 < n_used; i0++) {
            GGML_ASSERT(row[i0] >= 0 && row[i0] < l.n_expert);
            is_needed[row[i0]] = 1;
        }
        if (ith == 0) {
            memcpy((char *) dst->data + i1*dst->nb[1], row, n_used*sizeof(int32_t));
            if (is_record) {
                memcpy(&n.ids[i1*n_used], row, n_used*sizeof(int32_t));
            }
        }
    }

    if (ith == 0) {
        stream.use(l, is_needed);
        // a batch that uses most experts of one layer does so in the next; a long one of much the same tokens need not
        const int64_t n_needed = std::count(is_needed, is_needed + l.n_expert, 1);
        if (n.next && !n.next->token_experts && n_tokens > 1 && 4*n_needed >= 3*l.n_expert) {
            stream.predict(*n.next, llama_expert_set(n.next->n_expert, 1));
        }
    }
    if (stream.params.io == LLAMA_EXPERT_IO_MMAP) {
        stream.hint(l, is_needed, ith, nth);
    }
}

void llama_expert_context::predict_from_tokens(const int32_t * tokens, uint32_t n_tokens) {
    for (const auto & [il, l] : stream.layers()) {
        if (!l.token_experts) {
            continue;
        }
        const auto & table = *l.token_experts;
        llama_expert_set experts(l.n_expert);
        for (uint32_t i = 0; i < n_tokens; i++) {
            GGML_ASSERT(tokens[i] >= 0 && tokens[i] < table.ne[1]);
            const int32_t * row = (const int32_t *) ((const char *) table.data + tokens[i]*table.nb[1]);
            for (int64_t k = 0; k < table.ne[0]; k++) {
                GGML_ASSERT(row[k] >= 0 && row[k] < l.n_expert);
                experts[row[k]] = 1;
            }
        }
        stream.predict(l, std::move(experts));
    }
}

bool llama_expert_context::begin_pass(const int32_t * tokens, uint32_t n_tokens) {
    if (!stream.begin_pass()) {
        return false;
    }
    if (stream.params.fixation > 0 && !is_warmup) {
        pass_of_window = pass_of_window % stream.params.fixation + 1;
        if (pass_of_window == 1) {
            for (auto & it : nodes) {
                it.second.n_tokens = 0;
            }
        }
    }
    if (stream.params.prefetch && tokens) {
        predict_from_tokens(tokens, n_tokens);
    }
    return true;
}

bool llama_expert_context::end_pass() {
    return stream.end_pass();
}

//
// calls from the context and the graph
//

std::shared_ptr<llama_expert_context> llama_expert_context_init(const llama_model & model, const llama_cparams & cparams) {
    if (!model.expert_stream) {
        return nullptr;
    }
    const auto & stream = *model.expert_stream;
    if (stream.params.fixation > 0) {
        if (cparams.n_seq_max > 1) {
            throw std::runtime_error(format("expert fixation needs one sequence, got %u: sequences would share their experts", cparams.n_seq_max));
        }
        if (!model.devices.empty() && model.n_gpu_layers() > 0) {
            throw std::runtime_error("expert fixation works on the CPU only: set the number of GPU layers to 0");
        }
        LLAMA_LOG_INFO("expert fixation active \xe2\x80\x94 top-k pinned for the first %u forward passes\n", stream.params.fixation);
        const auto n_hashed = std::count_if(stream.layers().begin(), stream.layers().end(), [](const auto & it) { return it.second.token_experts; });
        if (n_hashed > 0) {
            LLAMA_LOG_INFO("expert fixation skips %d layers whose experts follow from the token\n", (int) n_hashed);
        }
    }
    return std::make_shared<llama_expert_context>(*model.expert_stream);
}

bool llama_expert_context_warmup(llama_expert_context * context, bool value) {
    if (context) {
        context->is_warmup = value;
        return false;
    }
    return value;
}

llama_expert_pass::llama_expert_pass(llama_expert_context * context, const int32_t * tokens, uint32_t n_tokens) : context(context) {
    if (context) {
        is_begun = context->begin_pass(tokens, n_tokens);
    }
}

llama_expert_pass::~llama_expert_pass() {
    end();
}

bool llama_expert_pass::end() {
    llama_expert_context * c = context;
    context = nullptr;
    return c == nullptr || c->end_pass();
}

uint32_t llama_expert_context_n_nodes(const llama_expert_context * context) {
    return context ? context->n_nodes() : 0;
}

ggml_tensor * llama_expert_context_observe(
        llama_expert_context * context, ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps) {
    return context ? context->observe(ctx, ids, down_exps) : ids;
}
