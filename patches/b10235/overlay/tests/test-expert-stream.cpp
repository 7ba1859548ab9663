// Without arguments: unit tests of the expert streaming engine.
// With one Mixture-of-Experts model: a cache size is kept over many passes.
// With two Mixture-of-Experts models: both loaded in one process, streamed side by side, freed one after the other.

#include "../src/llama-expert-compat.h"
#include "../src/llama-expert-context.h"
#include "../src/llama-expert-prefetch.h"
#include "../src/llama-model.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "llama-cpp.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <unistd.h>
#endif

#define CHECK(cond)                                                             \
    do {                                                                        \
        if (!(cond)) {                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static void test_names() {
    CHECK(llama_expert_tensor_layer("blk.0.ffn_gate_exps.weight")    == 0);
    CHECK(llama_expert_tensor_layer("blk.7.ffn_up_exps.weight")      == 7);
    CHECK(llama_expert_tensor_layer("blk.123.ffn_down_exps.weight")  == 123);
    CHECK(llama_expert_tensor_layer("blk.3.ffn_gate_up_exps.weight") == 3);

    for (const char * name : {
            "blk.0.ffn_gate_shexp.weight", "blk.0.ffn_up_shexp.weight", "blk.0.ffn_down_exps.bias", "blk.0.ffn_gate_up_exps.scale",
            "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_chexps.weight", "blk.0.ffn_down_chexps.weight", "blk.0.ffn_norm.weight",
            "blk.0.ffn_gate.weight", "blk.0.ffn_gate.3.weight", "blk.0.ffn_gate_tid2eid.weight", "blk.-1.ffn_up_exps.weight",
            "blk.0.ffn_up_exps.weight.x", "blk..ffn_up_exps.weight", "blk.0ffn_up_exps.weight", "xblk.0.ffn_up_exps.weight",
            "ffn_up_exps.weight", "token_embd.weight", "output.weight", "" }) {
        CHECK(llama_expert_tensor_layer(name) == -1);
    }
}

static void test_modes() {
    llama_expert_io io = LLAMA_EXPERT_IO_AUTO;
    for (const auto mode : { LLAMA_EXPERT_IO_AUTO, LLAMA_EXPERT_IO_MMAP, LLAMA_EXPERT_IO_FAULT, LLAMA_EXPERT_IO_DIRECT }) {
        CHECK(llama_expert_io_from_str(llama_expert_io_name(mode), &io) && io == mode);
    }
    CHECK(!llama_expert_io_from_str("", &io) && !llama_expert_io_from_str("MMAP", &io) && io == LLAMA_EXPERT_IO_DIRECT);
    CHECK(!llama_expert_stream_default_params().enabled);
}

static llama_expert_stream_params stream_params(llama_expert_io io) {
    auto params = llama_expert_stream_default_params();
    params.enabled = true;
    params.io      = io;
    return params;
}

static void test_cache() {
    llama_expert_cache cache;
    const uint32_t a = cache.add_layer(4, 100);
    const uint32_t b = cache.add_layer(3, 1000);
    CHECK(a == 0 && b == 4);

    for (const uint32_t unit : { a, a + 1, a + 2, b, b + 1, a }) {
        cache.touch(unit);
    }
    CHECK(cache.bytes() == 3*100 + 2*1000);
    CHECK(cache.contains(a) && !cache.contains(a + 3) && !cache.contains(b + 2));

    CHECK(cache.evict(0, 0).empty() && cache.evict(2300, 3).empty());
    CHECK(cache.evict(0, 2) == std::vector<uint32_t>({ a + 1 }));          // the oldest of the layer that holds three
    CHECK(cache.evict(1200, 0) == std::vector<uint32_t>({ a + 2, b }));    // the oldest of all until it fits
    CHECK(cache.bytes() == 1100 && cache.contains(a) && cache.contains(b + 1));
    CHECK(cache.evict(1, 1) == std::vector<uint32_t>({ b + 1, a }));
    CHECK(cache.bytes() == 0);

    cache.touch(b + 1);
    CHECK(cache.bytes() == 1000 && cache.contains(b + 1));
}

static void test_pages() {
    struct { uintptr_t addr; size_t size; uintptr_t outer_first, outer_last, inner_first, inner_last; } cases[] = {
        { 0x10000, 0x2000, 0x10000, 0x12000, 0x10000, 0x12000 }, // aligned
        { 0x10020, 0x2000, 0x10000, 0x13000, 0x11000, 0x12000 }, // GGUF aligns to 32 bytes
        { 0x10020, 0x0100, 0x10000, 0x11000, 0x11000, 0x11000 }, // within a page
        { 0x10fe0, 0x0040, 0x10000, 0x12000, 0x11000, 0x11000 }, // over a boundary, no whole page
        { 0x10000, 0x1001, 0x10000, 0x12000, 0x10000, 0x11000 },
    };
    for (const auto & c : cases) {
        const llama_expert_range range = { (const void *) c.addr, c.size, -1, 0 };
        const auto outer = llama_expert_pages_outer(range, 0x1000);
        const auto inner = llama_expert_pages_inner(range, 0x1000);
        CHECK(outer.first == c.outer_first && outer.last == c.outer_last);
        CHECK(inner.first == c.inner_first && inner.last == c.inner_last);
    }
    CHECK(llama_expert_page_size() >= 4096);
}

// a layer of n_expert experts over a buffer of the caller's
struct test_layer {
    static constexpr int64_t n_embd = 64;

    ggml_context_ptr ctx;
    ggml_tensor * gate;
    ggml_tensor * up;
    ggml_tensor * down;

    test_layer(int il, int64_t n_expert, int64_t n_ff, uint8_t * data) : ctx(ggml_init({ 16*ggml_tensor_overhead(), nullptr, true })) {
        const std::string prefix = "blk." + std::to_string(il) + ".ffn_";
        gate = add(prefix + "gate_exps.weight", n_embd, n_ff, n_expert, data);
        up   = add(prefix + "up_exps.weight",   n_embd, n_ff, n_expert, data);
        down = add(prefix + "down_exps.weight", n_ff, n_embd, n_expert, data);
    }

    ggml_tensor * add(const std::string & name, int64_t ne0, int64_t ne1, int64_t ne2, uint8_t * & data) {
        ggml_tensor * result = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, ne0, ne1, ne2);
        ggml_set_name(result, name.c_str());
        result->data = data;
        data += ggml_nbytes(result);
        return result;
    }

    void add_to(llama_expert_stream & stream) const {
        for (auto * t : { gate, up, down }) {
            stream.add_tensor(t, -1, 0);
        }
    }
};

// runs the observer over top-k of scores [n_expert, n_tokens], returns the ids it passed on
static std::vector<int32_t> observe(
        llama_expert_context & context, const ggml_tensor * down, const std::vector<float> & scores, int64_t n_expert, int64_t n_used, std::vector<int32_t> & expected) {
    const int64_t n_tokens = scores.size()/n_expert;

    ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    CHECK(backend);
    ggml_context_ptr ctx(ggml_init({ 64*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));

    ggml_tensor * probs = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_expert, n_tokens);
    ggml_tensor * ids   = ggml_argsort_top_k(ctx.get(), probs, n_used);
    ggml_set_name(ids, "ffn_moe_topk");
    ggml_tensor * out   = context.observe(ctx.get(), ids, down);
    CHECK(out != ids);
    ggml_tensor * copy  = ggml_cont(ctx.get(), ids);

    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, out);
    ggml_build_forward_expand(graph, copy);

    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
    ggml_backend_tensor_set(probs, scores.data(), 0, ggml_nbytes(probs));
    CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);

    std::vector<int32_t> result(n_used*n_tokens);
    expected.resize(result.size());
    ggml_backend_tensor_get(out,  result.data(),   0, ggml_nbytes(out));
    ggml_backend_tensor_get(copy, expected.data(), 0, ggml_nbytes(copy));
    return result;
}

static void test_observer() {
    const int64_t n_expert = 8;
    const int64_t n_ff     = 48;
    std::vector<uint8_t> data(2*3*n_expert*n_ff*test_layer::n_embd*sizeof(float));

    test_layer l0(0, n_expert, n_ff, data.data());
    test_layer l1(1, n_expert, n_ff, data.data() + data.size()/2);

    llama_expert_stream stream(stream_params(LLAMA_EXPERT_IO_FAULT), 2);
    l0.add_to(stream);
    l1.add_to(stream);
    stream.start(0);
    CHECK(stream.stats().n_slices == 2*3*8);

    llama_expert_context context(stream);
    CHECK(context.n_nodes() == 2);

    // a tensor that is not tracked gets no node: chunk experts of some models pass here too
    {
        ggml_context_ptr ctx(ggml_init({ 8*ggml_tensor_overhead(), nullptr, true }));
        ggml_tensor * ids = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, 2, 1);
        CHECK(context.observe(ctx.get(), ids, l0.gate) == ids);
        CHECK(llama_expert_context_observe(nullptr, ctx.get(), ids, l0.down) == ids);
    }

    // three tokens choose {1,2}, {2,1}, {7,2}: three experts in all
    const std::vector<float> scores = {
        0, 9, 8, 0, 0, 0, 0, 1,
        0, 8, 9, 0, 0, 0, 0, 1,
        0, 1, 5, 0, 0, 0, 0, 9,
    };
    std::vector<int32_t> expected;
    context.begin_pass(nullptr, 3);
    CHECK(observe(context, l0.down, scores, n_expert, 2, expected) == expected);
    CHECK(expected == std::vector<int32_t>({ 1, 2, 2, 1, 7, 2 }));

    auto stats = stream.stats();
    CHECK(stats.n_passes == 1 && stats.n_routed == 3*3 && stats.n_misses == 3*3 && stats.n_hits == 0);

    CHECK(observe(context, l1.down, scores, n_expert, 8, expected) == expected);
    context.end_pass();
    stats = stream.stats();
    CHECK(stats.n_passes == 1 && stats.n_routed == 3*3 + 8*3);
    CHECK(stats.n_hinted == 0 && stats.hint_bytes == 0 && stats.hint_errors == 0 && stats.n_evicted == 0);
    CHECK(stats.resident_bytes == (3 + 8)*3*n_ff*test_layer::n_embd*sizeof(float));

    context.begin_pass(nullptr, 3);
    observe(context, l0.down, scores, n_expert, 2, expected);
    context.end_pass();
    CHECK(stream.stats().n_hits == 3*3);

    stream.reset_stats();
    stats = stream.stats();
    CHECK(stats.n_slices == 2*3*8 && stats.n_passes == 0 && stats.n_routed == 0 && stats.n_hits == 0 && stats.resident_bytes > 0);
}

static void test_limits() {
    const int64_t n_expert = 8;
    const int64_t n_ff     = 48;
    const size_t  unit     = 3*n_ff*test_layer::n_embd*sizeof(float);
    std::vector<uint8_t> data(n_expert*unit);
    test_layer l(0, n_expert, n_ff, data.data());

    const std::vector<float> first  = { 9, 8, 0, 0, 0, 0, 0, 0 };
    const std::vector<float> second = { 0, 9, 8, 7, 0, 0, 0, 0 };
    std::vector<int32_t> expected;

    auto params = stream_params(LLAMA_EXPERT_IO_FAULT);
    params.keep_recent = 3;
    for (const uint64_t cache_size : { (uint64_t) 0, (uint64_t) (2*unit) }) {
        params.cache_size = cache_size;
        llama_expert_stream stream(params, 2);
        l.add_to(stream);
        stream.start(0);
        llama_expert_context context(stream);

        context.begin_pass(nullptr, 1);
        observe(context, l.down, first, n_expert, 2, expected); // 0, 1
        context.end_pass();
        CHECK(stream.stats().n_evicted == 0);

        context.begin_pass(nullptr, 1);
        observe(context, l.down, second, n_expert, 3, expected); // 1, 2, 3
        CHECK(stream.stats().resident_bytes == 4*unit);
        context.end_pass();

        const auto stats = stream.stats();
        CHECK(stats.resident_bytes == (cache_size ? 2 : 3)*unit);
        CHECK(stats.n_evicted == (cache_size ? 2 : 1)*3 && stats.evicted_bytes == (cache_size ? 2 : 1)*unit);
        CHECK(stats.n_hits == 3 && stats.n_misses == 4*3);
    }
}

static void test_fixation() {
    const int64_t n_expert = 16;
    const int64_t n_used   = 4;
    const int64_t n_ff     = 8;
    std::vector<uint8_t> data(3*n_expert*n_ff*test_layer::n_embd*sizeof(float));
    test_layer l(0, n_expert, n_ff, data.data());

    auto params = stream_params(LLAMA_EXPERT_IO_FAULT);
    params.fixation = 4;
    llama_expert_stream stream(params, 2);
    l.add_to(stream);
    stream.start(0);

    llama_expert_context context(stream);
    llama_expert_context other(stream);

    uint32_t random = 1;
    const auto scores = [&](int64_t n_tokens) {
        std::vector<float> result(n_expert*n_tokens);
        for (auto & x : result) {
            random = random*1664525 + 1013904223;
            x = (random >> 8)/(float) (1 << 24);
        }
        return result;
    };

    // a warm-up is no pass of a window
    context.is_warmup = true;
    std::vector<int32_t> expected;
    for (int i = 0; i < 3; i++) {
        context.begin_pass(nullptr, 1);
        CHECK(observe(context, l.down, scores(1), n_expert, n_used, expected) == expected);
    }
    context.is_warmup = false;

    std::vector<std::vector<int32_t>> windows;
    for (int pass = 0; pass < 20*4; pass++) {
        context.begin_pass(nullptr, 1);
        const auto ids = observe(context, l.down, scores(1), n_expert, n_used, expected);
        if (pass % 4 == 0) {
            CHECK(ids == expected);
            windows.push_back(ids);
        } else {
            CHECK(ids == windows.back());
        }
        for (size_t i = 0; i < ids.size(); i++) {
            CHECK(ids[i] >= 0 && ids[i] < n_expert);
            CHECK(std::count(ids.begin(), ids.end(), ids[i]) == 1);
        }
        context.end_pass();

        // another context of the model, three passes behind, chooses for itself
        if (pass >= 3) {
            other.begin_pass(nullptr, 1);
            const auto others = observe(other, l.down, scores(1), n_expert, n_used, expected);
            CHECK((others == expected) == ((pass - 3) % 4 == 0));
            other.end_pass();
        }
    }
    CHECK(windows.size() == 20 && std::set<std::vector<int32_t>>(windows.begin(), windows.end()).size() > 15);

    // a pass of another shape goes through as it is, and the window goes on
    context.begin_pass(nullptr, 1);
    const auto pinned = observe(context, l.down, scores(1), n_expert, n_used, expected);
    context.begin_pass(nullptr, 3);
    CHECK(observe(context, l.down, scores(3), n_expert, n_used, expected) == expected);
    context.begin_pass(nullptr, 1);
    CHECK(observe(context, l.down, scores(1), n_expert, n_used - 1, expected) == expected);
    context.begin_pass(nullptr, 1);
    CHECK(observe(context, l.down, scores(1), n_expert, n_used, expected) == pinned);

    // a batch is a shape like any other
    context.begin_pass(nullptr, 5);
    const auto batch = observe(context, l.down, scores(5), n_expert, n_used, expected);
    CHECK(batch == expected);
    context.begin_pass(nullptr, 5);
    CHECK(observe(context, l.down, scores(5), n_expert, n_used, expected) == batch);
}

// layer 0 takes its experts from a table of tokens, layer 1 has a router
static void test_prefetch() {
    const int64_t n_expert = 8;
    const int64_t n_used   = 2;
    const int64_t n_vocab  = 4;
    const int64_t n_ff     = 64;
    const size_t  unit     = 3*n_ff*test_layer::n_embd*sizeof(float);
    std::vector<uint8_t> data(2*n_expert*unit);
    test_layer l0(0, n_expert, n_ff, data.data());
    test_layer l1(1, n_expert, n_ff, data.data() + data.size()/2);

    alignas(64) int32_t table[n_vocab][n_used] = { { 0, 1 }, { 2, 3 }, { 3, 0 }, { 7, 6 } };
    ggml_backend_buffer_ptr buffer(ggml_backend_cpu_buffer_from_ptr(table, sizeof(table)));
    ggml_context_ptr ctx(ggml_init({ 4*ggml_tensor_overhead(), nullptr, true }));
    ggml_tensor * token_experts = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, n_used, n_vocab);
    ggml_set_name(token_experts, "blk.0.ffn_gate_tid2eid.weight");
    ggml_backend_tensor_alloc(buffer.get(), token_experts, table);

    auto params = stream_params(LLAMA_EXPERT_IO_FAULT);
    params.prefetch   = true;
    params.cache_size = 2*3*n_used*unit;
    params.fixation   = 2;
    llama_expert_stream stream(params, 2);
    stream.add_tensor(token_experts, -1, 0);
    l0.add_to(stream);
    l1.add_to(stream);
    stream.start(0);
    llama_expert_context context(stream);

    const std::vector<float> scores[] = { // what the table says for the tokens 1, 2
        { 0, 0, 9, 8, 0, 0, 0, 0 },
        { 8, 0, 0, 9, 0, 0, 0, 0 },
    };
    std::vector<int32_t> expected;
    const int32_t tokens[] = { 1, 2 };
    for (int pass = 0; pass < 2; pass++) {
        context.begin_pass(&tokens[pass], 1);
        CHECK(observe(context, l0.down, scores[pass], n_expert, n_used, expected) == expected); // never pinned
        observe(context, l1.down, scores[pass], n_expert, n_used, expected);
        context.end_pass();
    }
    stream.drain();
    auto stats = stream.stats();
    CHECK(stats.n_predicted == 2*n_used*3 && stats.n_predicted_used == stats.n_predicted && stats.n_predicted_lost == 0);
    CHECK(stats.n_hinted == stats.n_predicted);

    // a batch that uses all experts of layer 0: layer 1 is asked for while layer 0 computes
    std::vector<float>   all;
    std::vector<float>   few;
    std::vector<int32_t> ids(16, 1);
    for (int i = 0; i < 16; i++) {
        std::vector<float> score(n_expert, 0);
        score[i % n_expert]       = 9;
        score[(i + 1) % n_expert] = 8;
        all.insert(all.end(), score.begin(), score.end());
        few.insert(few.end(), scores[0].begin(), scores[0].end());
    }
    context.begin_pass(ids.data(), ids.size());
    observe(context, l0.down, all, n_expert, n_used, expected);
    observe(context, l1.down, few, n_expert, n_used, expected);
    context.end_pass();
    stream.drain();
    stats = stream.stats();
    CHECK(stats.n_predicted      == (2*n_used + n_used + n_expert)*3);
    CHECK(stats.n_predicted_used == (2*n_used + n_used + n_used)*3);
    CHECK(stats.n_predicted_lost == (n_expert - n_used)*3);
    CHECK(stats.resident_bytes <= params.cache_size);

    // embeddings: no tokens to look up
    context.begin_pass(nullptr, 1);
    context.end_pass();
    CHECK(stream.stats().n_predicted == stats.n_predicted);

    // what waits is dropped when the stream goes
    for (int i = 0; i < 1000; i++) {
        stream.predict(stream.layers().begin()->second, llama_expert_set(n_expert, 1));
    }
}

#ifdef __linux__
static std::vector<bool> resident(const uint8_t * addr, size_t size) {
    std::vector<unsigned char> pages(size/llama_expert_page_size());
    CHECK(mincore(const_cast<uint8_t *>(addr), size, pages.data()) == 0);
    std::vector<bool> result;
    for (const auto p : pages) {
        result.push_back(p & 1);
    }
    return result;
}

// the hints bring in the pages of the chosen slices, all of them and no others
static void test_hints_read_exactly_the_slices(size_t n_ff) {
    const size_t page_size = llama_expert_page_size();
    const int64_t n_expert = 6;

    const size_t slice_size = n_ff*test_layer::n_embd*sizeof(float);
    const size_t base       = page_size + 32; // GGUF aligns to 32 bytes
    const size_t file_size  = (base + 3*n_expert*slice_size + 2*page_size) & ~(page_size - 1);

    char path[] = "test-expert-stream-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    unlink(path);
    {
        std::vector<uint8_t> bytes(file_size, 0x5a);
        CHECK(write(fd, bytes.data(), bytes.size()) == (ssize_t) bytes.size());
        CHECK(fsync(fd) == 0);
    }
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);

    uint8_t * addr = (uint8_t *) mmap(nullptr, file_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(addr != MAP_FAILED);

    const auto before = resident(addr, file_size);
    size_t n_before = 0;
    for (const bool r : before) {
        n_before += r;
    }
    if (n_before != 0) {
        // a file system whose pages are the file: nothing to observe
        printf("%s: file stays in memory here (%zu pages), hints not checked\n", __func__, n_before);
        munmap(addr, file_size);
        close(fd);
        return;
    }

    test_layer l(0, n_expert, n_ff, addr + base);
    auto params = stream_params(LLAMA_EXPERT_IO_MMAP);
    params.cache_size = 3*slice_size;
    llama_expert_stream stream(params, 2);
    for (auto * t : { l.gate, l.up, l.down }) {
        stream.add_tensor(t, fd, (const uint8_t *) t->data - addr);
    }
    stream.start(0);
    llama_expert_context context(stream);

    std::vector<int32_t> expected;
    context.begin_pass(nullptr, 1);
    observe(context, l.down, { 0, 9, 0, 0, 8, 0 }, n_expert, 2, expected);
    CHECK(expected == std::vector<int32_t>({ 1, 4 }));

    std::vector<bool> wanted(file_size/page_size);
    for (int64_t t = 0; t < 3; t++) {
        for (const int64_t e : { 1, 4 }) {
            const size_t first = base + (t*n_expert + e)*slice_size;
            for (size_t p = first/page_size; p <= (first + slice_size - 1)/page_size; p++) {
                wanted[p] = true;
            }
        }
    }

    auto after = resident(addr, file_size);
    for (int i = 0; i < 200 && after != wanted; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        after = resident(addr, file_size);
    }
    for (size_t p = 0; p < wanted.size(); p++) {
        if (after[p] != wanted[p]) {
            fprintf(stderr, "page %zu of %zu: resident %d, wanted %d\n", p, wanted.size(), (int) after[p], (int) wanted[p]);
        }
    }
    CHECK(after == wanted);

    const auto stats = stream.stats();
    CHECK(stats.n_hinted == 6 && stats.hint_errors == 0);
    CHECK(stats.hint_bytes >= 6*slice_size && stats.hint_bytes <= 6*(slice_size + 2*page_size));

    // at the end of the pass the first expert goes, with the pages that it shares with absent neighbours
    for (size_t i = 0; i < file_size; i += page_size) {
        const volatile uint8_t * byte = addr + i;
        (void) (wanted[i/page_size] ? *byte : 0); // mapped, as after a use
    }
    context.end_pass();
    for (int64_t t = 0; t < 3; t++) {
        const size_t first = base + (t*n_expert + 1)*slice_size;
        for (size_t p = first/page_size; p <= (first + slice_size - 1)/page_size; p++) {
            wanted[p] = false;
        }
    }
    CHECK(resident(addr, file_size) == wanted);
    CHECK(stream.stats().n_evicted == 3);

    munmap(addr, file_size);
    close(fd);
}

// the pages of all routed experts that are in memory, page cache included
static size_t resident_bytes(const llama_expert_stream & stream) {
    const size_t page_size = llama_expert_page_size();
    std::set<uintptr_t> pages;
    for (const auto & [il, l] : stream.layers()) {
        for (const auto & range : l.tensors) {
            const auto outer = llama_expert_pages_outer(range, page_size);
            const auto found = resident((const uint8_t *) outer.first, outer.last - outer.first);
            for (size_t i = 0; i < found.size(); i++) {
                if (found[i]) {
                    pages.insert(outer.first + i*page_size);
                }
            }
        }
    }
    return pages.size()*page_size;
}
#endif

static llama_model_ptr load(const char * path, const llama_expert_stream_params * expert_stream) {
    auto params = llama_model_default_params();
    params.use_extra_bufts = false; // the kernels of the mapped experts on both sides
    params.expert_stream   = expert_stream;
    return llama_model_ptr(llama_model_load_from_file(path, params));
}

static llama_context_ptr make_context(llama_model * model) {
    auto params = llama_context_default_params();
    params.n_ctx           = 320;
    params.n_threads       = 2;
    params.n_threads_batch = 2;
    return llama_context_ptr(llama_init_from_model(model, params));
}

static std::vector<float> decode(const llama_model * model, llama_context * ctx, const std::vector<llama_token> & tokens) {
    std::vector<llama_token> copy = tokens;
    llama_memory_clear(llama_get_memory(ctx), true);
    CHECK(llama_decode(ctx, llama_batch_get_one(copy.data(), copy.size())) == 0);
    const float * logits = llama_get_logits_ith(ctx, -1);
    return { logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model)) };
}

static std::vector<llama_token> generate(const llama_model * model, llama_context * ctx, const std::vector<llama_token> & tokens, int n) {
    auto logits = decode(model, ctx, tokens);
    std::vector<llama_token> result;
    for (int i = 0; i < n; i++) {
        result.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
        CHECK(llama_decode(ctx, llama_batch_get_one(&result.back(), 1)) == 0);
        const float * next = llama_get_logits_ith(ctx, -1);
        logits.assign(next, next + logits.size());
    }
    return result;
}

// the smallest cache size of direct mode: a slot for each size of slice
static uint64_t direct_floor(const char * path) {
    auto model = load(path, nullptr);
    CHECK(model);
    std::set<uint64_t> slots;
    for (const auto & [name, tensor] : model->tensors_by_name) {
        if (llama_expert_tensor_layer(name.c_str()) >= 0) {
            const uint64_t n = ggml_nbytes(tensor)/tensor->ne[2] + LLAMA_EXPERT_DIRECT_ALIGN - 1;
            slots.insert((n + LLAMA_EXPERT_DIRECT_ALIGN - 1)/LLAMA_EXPERT_DIRECT_ALIGN*LLAMA_EXPERT_DIRECT_ALIGN);
        }
    }
    return std::accumulate(slots.begin(), slots.end(), (uint64_t) 0);
}

// each with the other's kind of streaming beside it; n tokens are generated
static void test_two_models(
        const char * path_a, const char * path_b, const llama_expert_stream_params & params_a, const llama_expert_stream_params & params_b, int n) {
    const std::vector<llama_token> tokens = { 1, 2, 3, 5, 7, 11, 13, 17 };

    std::vector<float> plain_a;
    std::vector<float> plain_b;
    std::vector<llama_token> answer_a;
    {
        auto a = load(path_a, nullptr);
        auto b = load(path_b, nullptr);
        CHECK(a && b);
        plain_a = decode(a.get(), make_context(a.get()).get(), tokens);
        plain_b = decode(b.get(), make_context(b.get()).get(), tokens);
        answer_a = generate(a.get(), make_context(a.get()).get(), tokens, n);

        llama_expert_stream_stats stats;
        CHECK(!llama_expert_stream_get_stats(a.get(), &stats));
    }

    auto a = load(path_a, &params_a);
    auto b = load(path_b, &params_b);
    CHECK(a && b);
    auto ctx_a  = make_context(a.get());
    auto ctx_a2 = make_context(a.get());
    auto ctx_b  = make_context(b.get());

    // two contexts of one model and one of another, all at once
    std::thread other([&]() {
        for (int i = 0; i < 4; i++) {
            CHECK(decode(a.get(), ctx_a2.get(), tokens) == plain_a);
        }
    });
    for (int i = 0; i < 4; i++) {
        CHECK(decode(a.get(), ctx_a.get(), tokens) == plain_a);
        CHECK(decode(b.get(), ctx_b.get(), tokens) == plain_b);
    }
    other.join();

    llama_expert_stream_stats stats_a;
    llama_expert_stream_stats stats_b;
    CHECK(llama_expert_stream_get_stats(a.get(), &stats_a));
    CHECK(llama_expert_stream_get_stats(b.get(), &stats_b));
    CHECK(stats_a.n_passes == 8 && stats_b.n_passes == 4);
    CHECK(stats_a.n_routed > 0 && stats_b.n_routed > 0);
    CHECK(stats_a.n_hits + stats_a.n_misses == stats_a.n_routed);
    if (params_a.io == LLAMA_EXPERT_IO_MMAP) {
        CHECK(stats_a.n_hinted >= stats_a.n_routed);
    }
    if (params_a.io == LLAMA_EXPERT_IO_DIRECT) {
        CHECK(stats_a.budget <= params_a.cache_size && stats_a.resident_bytes <= stats_a.budget && stats_a.n_evicted > 0);
    }
    CHECK(stats_b.n_hinted == 0);

    llama_expert_stream_reset_stats(a.get());
    CHECK(generate(a.get(), ctx_a.get(), tokens, n) == answer_a);
    CHECK(llama_expert_stream_get_stats(a.get(), &stats_a));
    CHECK(stats_a.n_passes == (uint64_t) n + 1);

    ctx_a.reset();
    ctx_a2.reset();
    a.reset();
    CHECK(decode(b.get(), ctx_b.get(), tokens) == plain_b);

    // what cannot stream is refused
    auto params = llama_model_default_params();
    params.expert_stream = &params_a;
    params.load_mode     = LLAMA_LOAD_MODE_NONE;
    CHECK(llama_model_load_from_file(path_a, params) == nullptr);
}

#ifdef __linux__
// no pass leaves more behind than the cache size and what one token needs
static void test_cache_size(const char * path, llama_expert_io io) {
    auto params = stream_params(io);
    params.prefetch = true;
    params.cache_size = 1; // refused: the floor is not known here yet
    CHECK(!load(path, &params));

    auto probe = load(path, nullptr);
    CHECK(probe);
    const auto & hparams = probe->hparams;
    uint64_t demand = 0;
    for (const auto & [name, tensor] : probe->tensors_by_name) {
        if (llama_expert_tensor_layer(name.c_str()) >= 0) {
            demand += ggml_nbytes(tensor)/hparams.n_expert*llama_expert_n_used(hparams);
        }
    }
    probe.reset();

    const int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    close(fd);

    params.cache_size = 2*demand;
    auto model = load(path, &params);
    CHECK(model);
    auto ctx = make_context(model.get());

    size_t most = 0;
    for (int pass = 0; pass < 200; pass++) {
        llama_memory_clear(llama_get_memory(ctx.get()), true);
        llama_token token = (pass*37) % llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
        CHECK(llama_decode(ctx.get(), llama_batch_get_one(&token, 1)) == 0);
        model->expert_stream->drain();
        most = std::max(most, resident_bytes(*model->expert_stream));
    }
    const auto stats = model->expert_stream->stats();
    printf("%s: %s: budget %zu, demand of a token %zu, most resident after a pass %zu, evicted %zu slices\n", __func__,
            llama_expert_io_name(io), (size_t) params.cache_size, (size_t) demand, most, (size_t) stats.n_evicted);
    CHECK(stats.n_evicted > 0);
    CHECK(most <= params.cache_size + demand);
}
#endif

int main(int argc, char ** argv) {
    ggml_backend_load_all();

    test_names();
    test_modes();
    test_pages();
    test_cache();
    test_observer();
    test_limits();
    test_fixation();
    test_prefetch();
#ifdef __linux__
    test_hints_read_exactly_the_slices(33);    // slices of 8,448 bytes, no multiple of a page
    test_hints_read_exactly_the_slices(32768); // slices of 8 MiB, more than one request to the device
#endif
    llama_backend_init();
    if (argc == 3) {
        auto mmap = stream_params(LLAMA_EXPERT_IO_MMAP);
        mmap.prefetch = true;
        test_two_models(argv[1], argv[2], mmap, stream_params(LLAMA_EXPERT_IO_FAULT), 64);

        auto direct = stream_params(LLAMA_EXPERT_IO_DIRECT);
        const auto roomy = direct;
        direct.cache_size = 8*direct_floor(argv[1]);
        test_two_models(argv[1], argv[2], direct, roomy, 64);
        direct.cache_size = direct_floor(argv[1]);
        test_two_models(argv[1], argv[2], direct, roomy, 256);
    }
#ifdef __linux__
    if (argc == 2) {
        test_cache_size(argv[1], LLAMA_EXPERT_IO_MMAP);
        test_cache_size(argv[1], LLAMA_EXPERT_IO_FAULT);
    }
#endif
    llama_backend_free();
    printf("all tests passed\n");
    return 0;
}
