#include "llama-expert-stream.h"

#include "llama-impl.h"
#include "llama-model.h"
#include "llama-model-loader.h"

#include "ggml.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#if defined(__APPLE__)
    #include <unistd.h>
#endif

//
// include/llama-expert.h
//

llama_expert_stream_params llama_expert_stream_default_params() {
    return { /*.enabled =*/ false, /*.io =*/ LLAMA_EXPERT_IO_AUTO };
}

const char * llama_expert_io_name(llama_expert_io io) {
    switch (io) {
        case LLAMA_EXPERT_IO_AUTO:  return "auto";
        case LLAMA_EXPERT_IO_MMAP:  return "mmap";
        case LLAMA_EXPERT_IO_FAULT: return "fault";
    }
    GGML_ABORT("fatal error");
}

bool llama_expert_io_from_str(const char * str, llama_expert_io * io) {
    for (const auto mode : { LLAMA_EXPERT_IO_AUTO, LLAMA_EXPERT_IO_MMAP, LLAMA_EXPERT_IO_FAULT }) {
        if (strcmp(str, llama_expert_io_name(mode)) == 0) {
            *io = mode;
            return true;
        }
    }
    return false;
}

bool llama_expert_stream_get_stats(const llama_model * model, llama_expert_stream_stats * stats) {
    if (model->expert_stream == nullptr) {
        return false;
    }
    *stats = model->expert_stream->stats();
    return true;
}

//
// classification
//

int llama_expert_tensor_layer(const char * name) {
    int layer = -1;
    int n     = 0;
    if (sscanf(name, "blk.%d.%n", &layer, &n) != 1 || n == 0 || layer < 0) {
        return -1;
    }
    for (const char * suffix : { "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_up_exps.weight" }) {
        if (strcmp(name + n, suffix) == 0) {
            return layer;
        }
    }
    return -1;
}

static bool is_down_exps(const ggml_tensor * tensor) {
    return strstr(tensor->name, ".ffn_down_exps.") != nullptr;
}

//
// llama_expert_stream
//

llama_expert_stream::llama_expert_stream(llama_expert_io io) :
    io(io == LLAMA_EXPERT_IO_AUTO ? LLAMA_EXPERT_IO_MMAP : io) {
    usage_start = llama_expert_io_get_usage();
}

llama_expert_stream::~llama_expert_stream() {
#if defined(__APPLE__)
    for (const auto & it : fds) {
        close(it.second);
    }
#endif
    if (n_slices == 0) {
        return; // a trial load
    }
    const auto s = stats();
    LLAMA_LOG_INFO("expert_stream: statistics: passes=%" PRIu64 " routed=%" PRIu64 " hinted=%" PRIu64 " hint_bytes=%" PRIu64
            " hint_errors=%" PRIu64 " read_bytes=%" PRIu64 " major_faults=%" PRIu64 "\n",
            s.n_passes, s.n_routed, s.n_hinted, s.hint_bytes, s.hint_errors, s.read_bytes, s.major_faults);
}

int llama_expert_stream::keep_fd(int fd) {
#if defined(__APPLE__)
    const auto it = fds.find(fd);
    return it != fds.end() ? it->second : fds[fd] = dup(fd);
#else
    return fd;
#endif
}

void llama_expert_stream::add_tensor(const ggml_tensor * tensor, int fd, uint64_t offs) {
    auto & l = layer_of_index[llama_expert_tensor_layer(tensor->name)];
    if (l == nullptr) {
        layers.push_back(std::make_unique<layer>());
        l = layers.back().get();
        l->stream   = this;
        l->is_first = layers.size() == 1;
        l->n_expert = tensor->ne[2];
        GGML_ASSERT(l->n_expert <= LLAMA_MAX_EXPERTS);
    }
    if (tensor->ne[2] != l->n_expert) {
        throw std::runtime_error(format("expert_stream: tensor '%s' has %" PRId64 " experts, others of its layer have %" PRId64,
                    tensor->name, tensor->ne[2], l->n_expert));
    }

    const llama_expert_range range = { tensor->data, ggml_nbytes(tensor), keep_fd(fd), offs };
    if (is_down_exps(tensor)) {
        layer_of_down[tensor] = l;
        l->tensors.push_back(range);
    } else {
        l->tensors.insert(l->tensors.begin(), range); // used before down
    }
    n_slices += l->n_expert;

    if (io == LLAMA_EXPERT_IO_MMAP) {
        llama_expert_io_no_readahead(range);
    }
}

ggml_tensor * llama_expert_stream::observe(ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps) const {
    const auto it = layer_of_down.find(down_exps);
    if (it == layer_of_down.end()) {
        return ids;
    }
    ggml_tensor * result = ggml_map_custom1(ctx, ids, observe_op, GGML_N_TASKS_MAX, it->second);
    ggml_format_name(result, "%s_observed", ids->name);
    return result;
}

// runs on every thread of the pool at once, each with its own ith
void llama_expert_stream::observe_op(ggml_tensor * dst, const ggml_tensor * ids, int ith, int nth, void * userdata) {
    GGML_ASSERT(ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t) && ids->ne[2] == 1 && ids->ne[3] == 1);

    const layer & l = *(const layer *) userdata;
    const auto  * s = l.stream;

    uint8_t is_needed[LLAMA_MAX_EXPERTS] = { 0 };
    int64_t n_needed = 0;

    // ids is a view into the full sort: its rows are further apart than they are long
    for (int64_t i1 = 0; i1 < ids->ne[1]; i1++) {
        const int32_t * row = (const int32_t *) ((const char *) ids->data + i1*ids->nb[1]);
        for (int64_t i0 = 0; i0 < ids->ne[0]; i0++) {
            GGML_ASSERT(row[i0] >= 0 && row[i0] < l.n_expert);
            n_needed += !is_needed[row[i0]];
            is_needed[row[i0]] = 1;
        }
        if (ith == 0) {
            memcpy((char *) dst->data + i1*dst->nb[1], row, ids->ne[0]*sizeof(int32_t));
        }
    }

    if (ith == 0) {
        s->n_passes += l.is_first;
        s->n_routed += n_needed*l.tensors.size();
    }
    if (s->io == LLAMA_EXPERT_IO_MMAP) {
        s->hint(l, is_needed, ith, nth);
    }
}

void llama_expert_stream::hint(const layer & l, const uint8_t * is_needed, int ith, int nth) const {
    int64_t i = 0;
    for (const auto & t : l.tensors) {
        llama_expert_range slices[LLAMA_MAX_EXPERTS];
        size_t             n = 0;

        const size_t size = t.size/l.n_expert;
        for (int64_t e = 0; e < l.n_expert; e++) {
            if (is_needed[e] && i++ % nth == ith) {
                slices[n++] = { (const uint8_t *) t.addr + e*size, size, t.fd, t.offs + e*size };
            }
        }

        const auto result = llama_expert_io_hint(slices, n);
        n_hinted    += n;
        hint_bytes  += result.bytes;
        hint_errors += result.errors;
    }
}

llama_expert_stream_stats llama_expert_stream::stats() const {
    const auto usage = llama_expert_io_get_usage();
    return {
        /*.n_slices     =*/ n_slices,
        /*.n_passes     =*/ n_passes,
        /*.n_routed     =*/ n_routed,
        /*.n_hinted     =*/ n_hinted,
        /*.hint_bytes   =*/ hint_bytes,
        /*.hint_errors  =*/ hint_errors,
        /*.read_bytes   =*/ usage.read_bytes   - usage_start.read_bytes,
        /*.major_faults =*/ usage.major_faults - usage_start.major_faults,
    };
}

//
// calls from the loader and the graph
//

std::shared_ptr<llama_expert_stream> llama_expert_stream_init(const llama_model_params & params, llama_model_loader & ml) {
    if (params.expert_stream == nullptr) {
        return nullptr;
    }
    if (!params.expert_stream->enabled) {
        if (params.expert_stream->io != LLAMA_EXPERT_IO_AUTO) {
            LLAMA_LOG_WARN("expert_stream: --expert-io has no effect without --expert-streaming\n");
        }
        return nullptr;
    }
    const bool has_routed = std::any_of(ml.weights_map.begin(), ml.weights_map.end(), [](const auto & it) {
        return llama_expert_tensor_layer(it.first.c_str()) >= 0;
    });
    if (!has_routed) {
        LLAMA_LOG_WARN("expert_stream: model has no routed expert tensors, loading it without expert streaming\n");
        return nullptr;
    }
    auto stream = std::make_shared<llama_expert_stream>(params.expert_stream->io);
    if (!params.no_alloc) { // a trial load maps nothing
        if (params.load_mode != LLAMA_LOAD_MODE_MMAP) {
            throw std::runtime_error(format("expert streaming needs load mode 'mmap', got '%s'", llama_load_mode_name(params.load_mode)));
        }
        if (!ml.use_mmap) {
            throw std::runtime_error("expert streaming needs a memory-mapped model file, which this build or model does not have");
        }
        LLAMA_LOG_INFO("expert streaming enabled \xe2\x80\x94 skipping initial mmap prefetch for routed expert tensors\n");
    }
    ml.expert_stream = stream.get();
    return stream;
}

ggml_backend_buffer_type_t llama_expert_stream_buft(
        const llama_expert_stream * stream, const ggml_tensor * tensor, ggml_backend_buffer_type_t buft) {
    return stream && llama_expert_tensor_layer(tensor->name) >= 0 ? ggml_backend_cpu_buffer_type() : buft;
}

void llama_expert_stream_start(
        llama_expert_stream * stream, const llama_model_loader & ml, const std::vector<std::pair<std::string, ggml_tensor *>> & tensors) {
    if (stream == nullptr) {
        return;
    }
    std::vector<llama_expert_range> others;
    for (const auto & [name, tensor] : tensors) {
        const auto * weight = ml.get_weight(name.c_str());
        if (weight == nullptr) {
            continue;
        }
        const auto & mapping = ml.mappings.at(weight->idx);
        const bool is_mapped = (const uint8_t *) tensor->data == (const uint8_t *) mapping->addr() + weight->offs;
        const int  fd        = ml.files.at(weight->idx)->file_id();
        if (llama_expert_tensor_layer(name.c_str()) >= 0) {
            GGML_ASSERT(is_mapped);
            stream->add_tensor(tensor, fd, weight->offs);
        } else if (is_mapped) {
            others.push_back({ tensor->data, ggml_nbytes(tensor), fd, weight->offs });
        }
    }
    llama_expert_io_hint(others.data(), others.size());

    LLAMA_LOG_INFO("expert_stream: tracking %" PRIu64 " routed expert slices\n", stream->stats().n_slices);
    LLAMA_LOG_INFO("expert_stream: io = %s\n", llama_expert_io_name(stream->io));
}

ggml_tensor * llama_expert_stream_observe(
        const llama_expert_stream * stream, ggml_context * ctx, ggml_tensor * ids, const ggml_tensor * down_exps) {
    return stream ? stream->observe(ctx, ids, down_exps) : ids;
}
