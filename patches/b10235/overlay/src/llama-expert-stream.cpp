#include "llama-expert-stream.h"

#include "llama-expert-compat.h"
#include "llama-expert-prefetch.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-model-loader.h"

#include "ggml.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#ifndef _WIN32
    #include <unistd.h>
#endif

//
// include/llama-expert.h
//

llama_expert_stream_params llama_expert_stream_default_params() {
    return {
        /*.enabled     =*/ false,
        /*.io          =*/ LLAMA_EXPERT_IO_AUTO,
        /*.io_threads  =*/ 0,
        /*.cache_size  =*/ 0,
        /*.keep_recent =*/ 0,
        /*.fixation    =*/ 0,
        /*.prefetch    =*/ false,
    };
}

const char * llama_expert_io_name(llama_expert_io io) {
    switch (io) {
        case LLAMA_EXPERT_IO_AUTO:   return "auto";
        case LLAMA_EXPERT_IO_MMAP:   return "mmap";
        case LLAMA_EXPERT_IO_FAULT:  return "fault";
        case LLAMA_EXPERT_IO_DIRECT: return "direct";
    }
    GGML_ABORT("fatal error");
}

bool llama_expert_io_from_str(const char * str, llama_expert_io * io) {
    for (const auto mode : { LLAMA_EXPERT_IO_AUTO, LLAMA_EXPERT_IO_MMAP, LLAMA_EXPERT_IO_FAULT, LLAMA_EXPERT_IO_DIRECT }) {
        if (strcmp(str, llama_expert_io_name(mode)) == 0) {
            *io = mode;
            return true;
        }
    }
    return false;
}

bool llama_expert_stream_get_stats(const llama_model * model, llama_expert_stream_stats * stats) {
    if (!model->expert_stream) {
        return false;
    }
    *stats = model->expert_stream->stats();
    return true;
}

void llama_expert_stream_reset_stats(const llama_model * model) {
    if (model->expert_stream) {
        model->expert_stream->reset_stats();
    }
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

// blk.<n>.ffn_gate_tid2eid.weight of DeepSeek-V4
static bool is_token_experts(const char * name) {
    const char * suffix = strstr(name, ".ffn_gate_tid2eid.weight");
    return suffix != nullptr && strlen(suffix) == strlen(".ffn_gate_tid2eid.weight");
}

//
// llama_expert_stream
//

llama_expert_range llama_expert_layer::slice(size_t i, int64_t expert) const {
    const auto & t = tensors[i];
    const size_t size = slice_size(i);
    return { (const uint8_t *) t.addr + expert*size, size, t.fd, t.offs + expert*size };
}

llama_expert_stream::llama_expert_stream(const llama_expert_stream_params & params, uint32_t n_expert_used) :
    params(params), n_expert_used(n_expert_used), usage_start(llama_expert_io_get_usage()) {
}

llama_expert_stream::~llama_expert_stream() {
    if (prefetch) {
        prefetch.reset();
        LLAMA_LOG_INFO("expert_stream: async prefetch issued %" PRIu64 " page hints across %zu layers\n",
                n_prefetched.load(), prefetched_layers.size());
    }
#if !defined(_WIN32)
    for (const auto & it : fds) {
        close(it.second);
    }
#endif
    if (all_layers.empty()) {
        return; // a trial load
    }
    const auto s = stats();
    LLAMA_LOG_INFO("expert_stream: statistics: passes=%" PRIu64 " routed=%" PRIu64 " hits=%" PRIu64 " misses=%" PRIu64
            " hinted=%" PRIu64 " hint_bytes=%" PRIu64 " hint_errors=%" PRIu64
            " evicted=%" PRIu64 " evicted_bytes=%" PRIu64 " resident_bytes=%" PRIu64
            " predicted=%" PRIu64 " predicted_used=%" PRIu64 " prefetch_wasted=%" PRIu64
            " read_bytes=%" PRIu64 " major_faults=%" PRIu64 " budget=%" PRIu64 " stall_us=%" PRIu64 " io_errors=%" PRIu64 "\n",
            s.n_passes, s.n_routed, s.n_hits, s.n_misses, s.n_hinted, s.hint_bytes, s.hint_errors,
            s.n_evicted, s.evicted_bytes, s.resident_bytes, s.n_predicted, s.n_predicted_used, s.n_predicted_lost,
            s.read_bytes, s.major_faults, s.budget, s.stall_us, s.n_io_errors);
}

int llama_expert_stream::keep_fd(int fd) {
#if defined(_WIN32)
    return fd; // not used there
#else
    const auto it = fds.find(fd);
    if (it != fds.end()) {
        return it->second;
    }
    const int own = dup(fd);
    if (fd >= 0 && own < 0) {
        throw std::runtime_error(format("expert_stream: cannot keep the model file open: %s", strerror(errno)));
    }
    return fds[fd] = own;
#endif
}

void llama_expert_stream::add_tensor(ggml_tensor * tensor, int fd, uint64_t offs) {
    if (is_token_experts(tensor->name)) {
        if (tensor->type == GGML_TYPE_I32 && ggml_backend_buffer_is_host(tensor->buffer)) {
            int il = -1;
            sscanf(tensor->name, "blk.%d.", &il);
            all_layers[il].token_experts = tensor;
        }
        return;
    }
    auto & l = all_layers[llama_expert_tensor_layer(tensor->name)];
    if (l.tensors.empty()) {
        l.n_expert = tensor->ne[2];
        GGML_ASSERT(l.n_expert <= LLAMA_MAX_EXPERTS);
    }
    if (tensor->ne[2] != l.n_expert) {
        throw std::runtime_error(format("expert_stream: tensor '%s' has %" PRId64 " experts, others of its layer have %" PRId64,
                    tensor->name, tensor->ne[2], l.n_expert));
    }

    const llama_expert_range range = { tensor->data, ggml_nbytes(tensor), keep_fd(fd), offs };
    if (strstr(tensor->name, ".ffn_down_exps.") != nullptr) {
        l.down = tensor;
        l.tensors .push_back(range);
        l.matrices.push_back(tensor);
    } else { // used before down
        l.tensors .insert(l.tensors.begin(),  range);
        l.matrices.insert(l.matrices.begin(), tensor);
    }

    if (params.io == LLAMA_EXPERT_IO_MMAP) {
        llama_expert_io_no_readahead(range);
    }
}

void llama_expert_stream::start(uint64_t other_bytes) {
    for (auto it = all_layers.begin(); it != all_layers.end();) {
        it = it->second.down ? std::next(it) : all_layers.erase(it); // a token table without routed experts
    }
    for (auto & [il, l] : all_layers) {
        size_t size = 0;
        for (size_t i = 0; i < l.tensors.size(); i++) {
            size += l.slice_size(i);
        }
        l.first_unit = cache.add_layer(l.n_expert, size);
        layer_of_unit.resize(l.first_unit + l.n_expert, &l);
        counters.n_slices += l.n_expert*l.tensors.size();
    }
    is_predicted.resize(layer_of_unit.size());
    if (params.prefetch) {
        LLAMA_LOG_INFO("async prefetch thread started\n");
    }
    if (params.io == LLAMA_EXPERT_IO_DIRECT) {
        uint64_t demand = 0; // of one token
        direct = std::make_unique<llama_expert_direct>(params.cache_size, params.io_threads);
        for (auto & [il, l] : all_layers) {
            for (size_t i = 0; i < l.tensors.size(); i++) {
                l.first_slices.push_back(direct->add_tensor(l.tensors[i], l.n_expert, il));
                l.matrices[i]->extra = direct->slices(l.first_slices[i]); // the tensors are used no longer than this lives
                demand += l.slice_size(i)*n_expert_used;
            }
        }
        direct->start(demand, other_bytes);
    } else if (params.prefetch) {
        prefetch = std::make_unique<llama_expert_prefetch>(*this, 2*all_layers.size());
    }
}

std::vector<uint32_t> llama_expert_stream::slice_ids(const llama_expert_layer & l, const uint8_t * is_meant) {
    std::vector<uint32_t> ids;
    for (const auto first : l.first_slices) {
        for (int64_t e = 0; e < l.n_expert; e++) {
            if (is_meant[e]) {
                ids.push_back(first + e);
            }
        }
    }
    return ids;
}

void llama_expert_stream::use(const llama_expert_layer & l, const uint8_t * is_needed) {
    if (direct) {
        direct->need(slice_ids(l, is_needed));
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (int64_t e = 0; e < l.n_expert; e++) {
        if (!is_needed[e]) {
            continue;
        }
        const uint32_t unit     = l.first_unit + e;
        const uint64_t n_slices = l.tensors.size();
        counters.n_routed += n_slices;
        if (cache.contains(unit)) {
            counters.n_hits += n_slices;
        } else {
            counters.n_misses += n_slices;
            missed.insert(&l);
        }
        if (is_predicted[unit]) {
            is_predicted[unit] = 0;
            counters.n_predicted_used += n_slices;
        }
        cache.touch(unit);
    }
}

void llama_expert_stream::hint(const llama_expert_layer & l, const uint8_t * is_needed, int ith, int nth) {
    int64_t i_needed = 0;
    for (size_t i = 0; i < l.tensors.size(); i++) {
        llama_expert_range slices[LLAMA_MAX_EXPERTS];
        size_t             n = 0;
        for (int64_t e = 0; e < l.n_expert; e++) {
            if (is_needed[e] && i_needed++ % nth == ith) {
                slices[n++] = l.slice(i, e);
            }
        }
        const auto result = llama_expert_io_hint(slices, n);
        n_hinted    += n;
        hint_bytes  += result.bytes;
        hint_errors += result.errors;
    }
}

void llama_expert_stream::predict(const llama_expert_layer & l, llama_expert_set experts) {
    if (direct) {
        direct->read_ahead(slice_ids(l, experts.data()));
        return;
    }
    if (!prefetch) {
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (!prefetch->push(l, experts)) {
        return;
    }
    for (int64_t e = 0; e < l.n_expert; e++) {
        const uint32_t unit = l.first_unit + e;
        if (experts[e] && !is_predicted[unit]) {
            is_predicted[unit] = 1;
            predicted.push_back(unit);
            counters.n_predicted += l.tensors.size();
            cache.touch(unit);
        }
    }
}

static void evict(const std::vector<llama_expert_range> & ranges) {
    for (const auto & range : ranges) {
        llama_expert_io_evict(range);
    }
}

void llama_expert_stream::hint_predicted(const llama_expert_layer & l, const llama_expert_set & experts) {
    hint(l, experts.data());

    std::vector<llama_expert_range> late; // dropped while they waited: nobody would drop them again
    {
        std::lock_guard<std::mutex> lock(mutex);
        prefetched_layers.insert(&l);
        for (int64_t e = 0; e < l.n_expert; e++) {
            if (experts[e]) {
                n_prefetched += l.tensors.size();
                if (!cache.contains(l.first_unit + e)) {
                    add_droppable(late, l, e, e + 1);
                }
            }
        }
    }
    evict(late);
}

// Slices share pages with their neighbours. A page goes with the last of them that is present; at the ends of a
// tensor, and where a page holds more than two slices, it stays.
void llama_expert_stream::add_droppable(std::vector<llama_expert_range> & ranges, const llama_expert_layer & l, int64_t first, int64_t last) const {
    const size_t page_size = llama_expert_page_size();
    const bool is_alone_before = first > 0         && !cache.contains(l.first_unit + first - 1);
    const bool is_alone_after  = last < l.n_expert && !cache.contains(l.first_unit + last);

    for (size_t i = 0; i < l.tensors.size(); i++) {
        const auto   range  = l.slice(i, first);
        const size_t before = is_alone_before && range.size >= page_size ? page_size - 1 : 0;
        const size_t after  = is_alone_after  && range.size >= page_size ? page_size - 1 : 0;
        ranges.push_back({ (const uint8_t *) range.addr - before, before + (last - first)*range.size + after, range.fd, range.offs - before });
    }
}

// the same for all experts that are not present, run by run
void llama_expert_stream::add_absent(std::vector<llama_expert_range> & ranges, const llama_expert_layer & l) const {
    for (int64_t first = 0, last; first < l.n_expert; first = last + 1) {
        for (last = first; last < l.n_expert && !cache.contains(l.first_unit + last); last++) {
        }
        if (first < last) {
            add_droppable(ranges, l, first, last);
        }
    }
}

bool llama_expert_stream::begin_pass() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        counters.n_passes++;
    }
    return !direct || direct->begin_pass();
}

void llama_expert_stream::end_pass_direct() {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto unit : cache.evict(0, params.keep_recent)) {
        const auto & l = *layer_of_unit[unit];
        for (const auto first : l.first_slices) {
            direct->drop(first + (unit - l.first_unit));
        }
    }
}

bool llama_expert_stream::end_pass() {
    if (direct) {
        const bool ok = direct->end_pass();
        end_pass_direct();
        return ok;
    }
    std::vector<llama_expert_range> ranges;
    {
        std::lock_guard<std::mutex> lock(mutex);
        for (const auto unit : predicted) {
            counters.n_predicted_lost += is_predicted[unit] ? layer_of_unit[unit]->tensors.size() : 0;
            is_predicted[unit] = 0;
        }
        predicted.clear();

        const uint64_t bytes = cache.bytes();
        for (const auto unit : cache.evict(params.cache_size, params.keep_recent)) {
            const auto & l = *layer_of_unit[unit];
            add_droppable(ranges, l, unit - l.first_unit, unit - l.first_unit + 1);
        }
        counters.n_evicted     += ranges.size();
        counters.evicted_bytes += bytes - cache.bytes();

        // page faults read neighbours that nobody asked for
        if (params.io == LLAMA_EXPERT_IO_FAULT && (params.cache_size > 0 || params.keep_recent > 0)) {
            for (const auto * l : missed) {
                add_absent(ranges, *l);
            }
        }
        missed.clear();
    }
    evict(ranges);
    return true;
}

void llama_expert_stream::drain() {
    if (prefetch) {
        prefetch->drain();
    }
}

llama_expert_stream_stats llama_expert_stream::stats() const {
    const auto usage = llama_expert_io_get_usage();

    std::lock_guard<std::mutex> lock(mutex);
    auto result = counters;
    result.resident_bytes = cache.bytes();
    result.n_hinted       = n_hinted;
    result.hint_bytes     = hint_bytes;
    result.hint_errors    = hint_errors;
    result.read_bytes     = usage.read_bytes   - usage_start.read_bytes;
    result.major_faults   = usage.major_faults - usage_start.major_faults;
    result.budget         = params.cache_size;
    if (direct) {
        const auto d = direct->stats();
        result.n_hits           = d.n_hits;
        result.n_misses         = d.n_misses;
        result.n_evicted        = d.n_evicted;
        result.evicted_bytes    = d.evicted_bytes;
        result.n_predicted      = d.n_ahead;
        result.n_predicted_used = d.n_ahead_used;
        result.n_predicted_lost = d.n_ahead_lost;
        result.stall_us         = d.stall_us;
        result.n_io_errors      = d.n_errors;
        result.budget           = direct->budget();
        result.resident_bytes   = direct->resident_bytes();
    }
    return result;
}

void llama_expert_stream::reset_stats() {
    std::lock_guard<std::mutex> lock(mutex);
    const uint64_t n_slices = counters.n_slices;
    counters = {};
    counters.n_slices = n_slices;
    n_hinted    = 0;
    hint_bytes  = 0;
    hint_errors = 0;
    usage_start = llama_expert_io_get_usage();
    if (direct) {
        direct->reset_stats();
    }
}

//
// calls from the loader
//

// refuses limits that no pass could keep
static void check_limits(const llama_expert_stream_params & params, uint32_t n_expert_used, const llama_model_loader & ml) {
    if (params.keep_recent > 0 && params.keep_recent < n_expert_used) {
        throw std::runtime_error(format("expert_stream: keep-recent of %u is below the %u experts a token uses: the floor is %u",
                    params.keep_recent, n_expert_used, n_expert_used));
    }
    uint64_t floor = 0;
    for (const auto & [name, weight] : ml.weights_map) {
        if (llama_expert_tensor_layer(name.c_str()) >= 0) {
            floor += ggml_nbytes(weight.tensor)/weight.tensor->ne[2]*n_expert_used;
        }
    }
    const bool is_mapped = params.io == LLAMA_EXPERT_IO_MMAP || params.io == LLAMA_EXPERT_IO_FAULT; // direct has a lower floor of its own
    if (params.cache_size > 0 && params.cache_size < floor && is_mapped) {
        throw std::runtime_error(format("expert_stream: cache size of %.2f MiB is below one token's demand: the floor is %" PRIu64 " MiB",
                    params.cache_size/1024.0/1024.0, (floor + 1024*1024 - 1)/1024/1024));
    }
}

static bool has_options(const llama_expert_stream_params & params) {
    return params.io_threads > 0 || params.cache_size > 0 || params.keep_recent > 0 || params.fixation > 0 || params.prefetch;
}

std::shared_ptr<llama_expert_stream> llama_expert_stream_init(
        const llama_model_params & model_params, const llama_hparams & hparams, llama_model_loader & ml) {
    if (model_params.expert_stream == nullptr) {
        return nullptr;
    }
    const auto & params = *model_params.expert_stream;
    if (!params.enabled) {
        if (params.io != LLAMA_EXPERT_IO_AUTO || has_options(params)) {
            LLAMA_LOG_WARN("expert_stream: the --expert-* options have no effect without --expert-streaming\n");
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
    check_limits(params, llama_expert_n_used(hparams), ml);
    auto stream = std::make_shared<llama_expert_stream>(params, llama_expert_n_used(hparams));
    if (!model_params.no_alloc) { // a trial load maps nothing
        if (!llama_expert_may_map(model_params.load_mode)) {
            throw std::runtime_error(format("expert streaming needs load mode 'mmap', got '%s'", llama_load_mode_name(model_params.load_mode)));
        }
        if (!ml.use_mmap) {
            throw std::runtime_error("expert streaming needs a memory-mapped model file, which this build or model does not have");
        }
        LLAMA_LOG_INFO("expert streaming enabled \xe2\x80\x94 skipping initial mmap prefetch for routed expert tensors\n");
        if (params.keep_recent > 0) {
            LLAMA_LOG_INFO("expert keep-recent window = %u experts per layer\n", params.keep_recent);
        }
        if (params.cache_size > 0) {
            LLAMA_LOG_INFO("expert_stream: cache size = %.2f MiB\n", params.cache_size/1024.0/1024.0);
        }
    }
    ml.expert_stream = stream.get();
    return stream;
}

ggml_backend_buffer_type_t llama_expert_stream_buft(
        const llama_expert_stream * stream, const ggml_tensor * tensor, ggml_backend_buffer_type_t buft) {
    return stream && llama_expert_tensor_layer(tensor->name) >= 0 ? ggml_backend_cpu_buffer_type() : buft;
}

// Direct reads win when the experts are larger than what memory is left for them, and lose a little to the page cache
// when they nearly fit.
static llama_expert_io choose_io(uint64_t cache_size, uint64_t expert_bytes, uint64_t other_bytes) {
    const double max_ratio = 1.25;

    const uint64_t available = llama_expert_memory_available();
    const uint64_t room      = cache_size > 0 ? cache_size : available - std::min(available, other_bytes);
    const bool     is_direct = (available > 0 || cache_size > 0) && expert_bytes > max_ratio*room;
    const auto     io        = is_direct ? LLAMA_EXPERT_IO_DIRECT : LLAMA_EXPERT_IO_MMAP;

    LLAMA_LOG_INFO("expert_stream: io = %s (auto: experts %.2f MiB, %s %.2f MiB)\n", llama_expert_io_name(io),
            expert_bytes/1024.0/1024.0, cache_size > 0 ? "cache size" : "available", room/1024.0/1024.0);
    return io;
}

void llama_expert_stream_start(
        llama_expert_stream * stream, const llama_model_loader & ml, const std::vector<std::pair<std::string, ggml_tensor *>> & tensors) {
    if (stream == nullptr) {
        return;
    }
    struct routed {
        ggml_tensor * tensor;
        int           fd;
        uint64_t      offs;
    };
    std::vector<routed> experts;
    uint64_t expert_bytes = 0;
    uint64_t other_bytes  = 0;
    std::vector<llama_expert_range> others;
    for (const auto & [name, tensor] : tensors) {
        const auto * weight = ml.get_weight(name.c_str());
        if (weight == nullptr) {
            continue;
        }
        const auto & mapping   = ml.mappings.at(weight->idx);
        const bool   is_mapped = (const uint8_t *) tensor->data == (const uint8_t *) mapping->addr() + weight->offs;
        const bool   is_routed = llama_expert_tensor_layer(name.c_str()) >= 0;
        const int    fd        = ml.files.at(weight->idx)->file_id();
        GGML_ASSERT(is_mapped || !is_routed);
        if (is_routed || is_token_experts(name.c_str())) {
            experts.push_back({ tensor, fd, weight->offs });
            expert_bytes += is_routed ? ggml_nbytes(tensor) : 0;
        }
        if (is_mapped && !is_routed) {
            other_bytes += ggml_nbytes(tensor);
            others.push_back({ tensor->data, ggml_nbytes(tensor), fd, weight->offs });
        }
    }
    if (stream->params.io == LLAMA_EXPERT_IO_AUTO) {
        stream->params.io = choose_io(stream->params.cache_size, expert_bytes, other_bytes);
    } else {
        LLAMA_LOG_INFO("expert_stream: io = %s\n", llama_expert_io_name(stream->params.io));
    }
    for (const auto & e : experts) {
        stream->add_tensor(e.tensor, e.fd, e.offs);
    }
    std::map<int, uint64_t> heads; // where the tensors of each file begin
    for (const auto & range : others) {
        const auto it = heads.insert({ range.fd, range.offs }).first;
        it->second = std::min(it->second, range.offs);
    }
    for (const auto & [fd, offs] : heads) {
        llama_expert_io_forget_head(fd, offs);
    }
    llama_expert_io_hint(others.data(), others.size());

    stream->start(other_bytes);
    LLAMA_LOG_INFO("expert_stream: tracking %" PRIu64 " routed expert slices\n", stream->stats().n_slices);
}
