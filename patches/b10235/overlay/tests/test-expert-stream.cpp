// Without arguments: unit tests of the expert streaming engine.
// With two Mixture-of-Experts models: both loaded in one process, streamed side by side, freed one after the other.

#include "../src/llama-expert-stream.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "llama-cpp.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    for (const auto mode : { LLAMA_EXPERT_IO_AUTO, LLAMA_EXPERT_IO_MMAP, LLAMA_EXPERT_IO_FAULT }) {
        CHECK(llama_expert_io_from_str(llama_expert_io_name(mode), &io) && io == mode);
    }
    CHECK(!llama_expert_io_from_str("", &io) && !llama_expert_io_from_str("MMAP", &io) && io == LLAMA_EXPERT_IO_FAULT);
    CHECK(!llama_expert_stream_default_params().enabled);
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
        for (const auto * t : { gate, up, down }) {
            stream.add_tensor(t, -1, 0);
        }
    }
};

// runs the observer over top-k of scores [n_expert, n_tokens], returns the ids it passed on
static std::vector<int32_t> observe(
        const llama_expert_stream & stream, const ggml_tensor * down, const std::vector<float> & scores, int64_t n_expert, int64_t n_used, std::vector<int32_t> & expected) {
    const int64_t n_tokens = scores.size()/n_expert;

    ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    CHECK(backend);
    ggml_context_ptr ctx(ggml_init({ 64*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }));

    ggml_tensor * probs = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_expert, n_tokens);
    ggml_tensor * ids   = ggml_argsort_top_k(ctx.get(), probs, n_used);
    ggml_set_name(ids, "ffn_moe_topk");
    ggml_tensor * out   = stream.observe(ctx.get(), ids, down);
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

    llama_expert_stream stream(LLAMA_EXPERT_IO_FAULT);
    l0.add_to(stream);
    l1.add_to(stream);
    CHECK(stream.stats().n_slices == 2*3*8);

    // a tensor that is not tracked gets no node: chunk experts of some models pass here too
    {
        ggml_context_ptr ctx(ggml_init({ 8*ggml_tensor_overhead(), nullptr, true }));
        ggml_tensor * ids = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, 2, 1);
        CHECK(stream.observe(ctx.get(), ids, l0.gate) == ids);
        CHECK(llama_expert_stream_observe(nullptr, ctx.get(), ids, l0.down) == ids);
    }

    // three tokens choose {1,2}, {2,1}, {7,2}: three experts in all
    const std::vector<float> scores = {
        0, 9, 8, 0, 0, 0, 0, 1,
        0, 8, 9, 0, 0, 0, 0, 1,
        0, 1, 5, 0, 0, 0, 0, 9,
    };
    std::vector<int32_t> expected;
    CHECK(observe(stream, l0.down, scores, n_expert, 2, expected) == expected);
    CHECK(expected == std::vector<int32_t>({ 1, 2, 2, 1, 7, 2 }));

    auto stats = stream.stats();
    CHECK(stats.n_passes == 1 && stats.n_routed == 3*3);

    CHECK(observe(stream, l1.down, scores, n_expert, 8, expected) == expected);
    stats = stream.stats();
    CHECK(stats.n_passes == 1 && stats.n_routed == 3*3 + 8*3);
    CHECK(stats.n_hinted == 0 && stats.hint_bytes == 0 && stats.hint_errors == 0);
}

#ifdef __linux__
static std::vector<bool> resident(const uint8_t * addr, size_t size) {
    std::vector<unsigned char> pages(size/llama_expert_page_size());
    CHECK(mincore((void *) addr, size, pages.data()) == 0);
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
    llama_expert_stream stream(LLAMA_EXPERT_IO_MMAP);
    for (const auto * t : { l.gate, l.up, l.down }) {
        stream.add_tensor(t, fd, (const uint8_t *) t->data - addr);
    }

    std::vector<int32_t> expected;
    observe(stream, l.down, { 0, 9, 0, 0, 8, 0 }, n_expert, 2, expected);
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

    munmap(addr, file_size);
    close(fd);
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
    params.n_ctx           = 64;
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

static void test_two_models(const char * path_a, const char * path_b) {
    const std::vector<llama_token> tokens = { 1, 2, 3, 5, 7, 11, 13, 17 };
    const llama_expert_stream_params mmap  = { true, LLAMA_EXPERT_IO_MMAP };
    const llama_expert_stream_params fault = { true, LLAMA_EXPERT_IO_FAULT };

    std::vector<float> plain_a;
    std::vector<float> plain_b;
    {
        auto a = load(path_a, nullptr);
        auto b = load(path_b, nullptr);
        CHECK(a && b);
        plain_a = decode(a.get(), make_context(a.get()).get(), tokens);
        plain_b = decode(b.get(), make_context(b.get()).get(), tokens);

        llama_expert_stream_stats stats;
        CHECK(!llama_expert_stream_get_stats(a.get(), &stats));
    }

    auto a = load(path_a, &mmap);
    auto b = load(path_b, &fault);
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
    CHECK(stats_a.n_hinted == stats_a.n_routed && stats_a.n_routed > 0);
    CHECK(stats_b.n_hinted == 0                && stats_b.n_routed > 0);

    ctx_a.reset();
    ctx_a2.reset();
    a.reset();
    CHECK(decode(b.get(), ctx_b.get(), tokens) == plain_b);

    // what cannot stream is refused
    auto params = llama_model_default_params();
    params.expert_stream = &mmap;
    params.load_mode     = LLAMA_LOAD_MODE_NONE;
    CHECK(llama_model_load_from_file(path_a, params) == nullptr);
}

int main(int argc, char ** argv) {
    ggml_backend_load_all();

    test_names();
    test_modes();
    test_pages();
    test_observer();
#ifdef __linux__
    test_hints_read_exactly_the_slices(33);    // slices of 8,448 bytes, no multiple of a page
    test_hints_read_exactly_the_slices(32768); // slices of 8 MiB, more than one request to the device
#endif
    if (argc == 3) {
        llama_backend_init();
        test_two_models(argv[1], argv[2]);
        llama_backend_free();
    }
    printf("all tests passed\n");
    return 0;
}
