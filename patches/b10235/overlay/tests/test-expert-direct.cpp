// Unit tests of the direct engine: no model, a file of slices with bytes of their own.

#include "../src/llama-expert-direct.h"

#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#ifdef _WIN32
    #include <io.h>
    #define fileno _fileno
#else
    #include <unistd.h>
#endif

#define CHECK(cond)                                                             \
    do {                                                                        \
        if (!(cond)) {                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);  \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static const char * file_name = "test-expert-direct.bin";

static uint8_t byte_at(uint64_t offs) {
    return (uint8_t) (offs*2654435761u >> 24 ^ offs >> 16 ^ offs);
}

static void write_file(uint64_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint64_t i = 0; i < size; i++) {
        bytes[i] = byte_at(i);
    }
    FILE * file = fopen(file_name, "wb");
    CHECK(file && fwrite(bytes.data(), 1, size, file) == size && fclose(file) == 0);
}

// layers of three tensors each in one file, the last of them smaller; no slice starts on a block
struct test_model {
    static constexpr int     n_layers = 4;
    static constexpr int64_t n_expert = 8;

    const uint64_t head = 1000;
    const uint64_t large;
    const uint64_t small;

    FILE * file;

    explicit test_model(uint64_t large, uint64_t small) : large(large), small(small) {
        write_file(bytes());
        file = fopen(file_name, "rb");
        CHECK(file);
    }

    ~test_model() {
        fclose(file);
        remove(file_name);
    }

    uint64_t bytes() const { return head + n_layers*n_expert*(2*large + small); }

    uint64_t slot(uint64_t size) const {
        return (size + 2*LLAMA_EXPERT_DIRECT_ALIGN - 2)/LLAMA_EXPERT_DIRECT_ALIGN*LLAMA_EXPERT_DIRECT_ALIGN;
    }

    uint64_t floor() const { return slot(large) + (slot(small) == slot(large) ? 0 : slot(small)); }
};

// the engine over such a model, and what ggml does with it
struct test_engine {
    const test_model  & model;
    llama_expert_direct direct;

    struct tensor {
        uint32_t first;
        uint64_t offs;
        uint64_t size; // of a slice

        ggml_expert_slices * slices;
    };

    std::vector<std::vector<tensor>> layers;

    test_engine(const test_model & model, uint64_t cache_size, int n_threads = 0) : model(model), direct(cache_size, n_threads) {
        uint64_t offs = model.head;
        for (int il = 0; il < model.n_layers; il++) {
            layers.emplace_back();
            for (const uint64_t size : { model.large, model.large, model.small }) {
                const llama_expert_range range = { nullptr, (size_t) (size*model.n_expert), fileno(model.file), offs };
                const uint32_t first = direct.add_tensor(range, model.n_expert, il);
                layers.back().push_back({ first, offs, size, direct.slices(first) });
                offs += range.size;
            }
        }
        direct.start(0, 0);
    }

    std::vector<uint32_t> ids(int il, const std::vector<int> & experts) const {
        std::vector<uint32_t> result;
        for (const auto & t : layers[il]) {
            for (const int e : experts) {
                result.push_back(t.first + e);
            }
        }
        return result;
    }

    // what one thread computes of a layer: false when a byte is wrong
    bool product(int il, const std::vector<int> & experts, int ith, int nth) {
        bool ok = true;
        for (const auto & t : layers[il]) {
            for (const int e : experts) {
                const uint8_t * bytes = (const uint8_t *) t.slices->get(t.slices, e, ith, nth);
                const uint64_t  offs  = t.offs + e*t.size;
                for (const uint64_t i : { (uint64_t) 0, (uint64_t) ith*37 % t.size, t.size/2, t.size - 1 }) {
                    ok = ok && bytes[i] == byte_at(offs + i);
                }
            }
        }
        return ok;
    }

    bool pass(const std::vector<int> & experts) {
        if (!direct.begin_pass()) {
            CHECK(!direct.end_pass());
            return false;
        }
        bool ok = true;
        for (int il = 0; il < model.n_layers; il++) {
            direct.need(ids(il, experts));
            ok = product(il, experts, 0, 1) && ok;
        }
        return direct.end_pass() && ok;
    }
};

struct barrier {
    explicit barrier(int n) : n(n) {}

    const int n;

    std::mutex              mutex;
    std::condition_variable changed;
    int n_here = 0;
    int round  = 0;

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        const int before = round;
        if (++n_here == n) {
            n_here = 0;
            round++;
            changed.notify_all();
        }
        changed.wait(lock, [&]() { return round != before; });
    }
};

static void test_arena() {
    // one byte in five belongs to the second class
    llama_expert_arena arena(100*4096 + 4095, { { 8192, 100 }, { 4096, 50 } });
    CHECK(arena.bytes() <= 100*4096 && arena.n_slots(0) == 40 && arena.n_slots(1) == 20);

    llama_expert_arena whole(UINT64_MAX, { { 8192, 100 }, { 4096, 50 } });
    CHECK(whole.n_slots() == 150);

    bool is_refused = false;
    try {
        llama_expert_arena(8192 + 4095, { { 8192, 100 }, { 4096, 50 } });
    } catch (const std::exception &) {
        is_refused = true;
    }
    CHECK(is_refused);

    llama_expert_arena a(3*4096, { { 4096, 10 } });
    const uint32_t s0 = a.take(0);
    const uint32_t s1 = a.take(0);
    const uint32_t s2 = a.take(0);
    CHECK(a[s1].addr == a[s0].addr + 4096 && a[s2].addr == a[s1].addr + 4096);
    CHECK(a.take(0) == LLAMA_EXPERT_NONE);
    a.release_last(s0);
    a.release_last(s1);
    a.release_first(s2);
    a.hold(s0);
    a.release_last(s0); // used again
    CHECK(a.take(0) == s2 && a.take(0) == s1 && a.take(0) == s0 && a.take(0) == LLAMA_EXPERT_NONE);
    a.release_free(s1);
    CHECK(a.take(0) == s1);
}

static void test_file() {
    const uint64_t size = 3*LLAMA_EXPERT_DIRECT_ALIGN + 100;
    write_file(size);
    FILE * file = fopen(file_name, "rb");
    CHECK(file);
    {
        llama_expert_file f(fileno(file));
        llama_expert_memory memory(4*LLAMA_EXPERT_DIRECT_ALIGN);
        const uint64_t offs = 2*LLAMA_EXPERT_DIRECT_ALIGN;
        CHECK(f.read(memory.data(), 2*LLAMA_EXPERT_DIRECT_ALIGN, size - offs, offs).empty()); // up to the end of the file
        for (uint64_t i = 0; i < size - offs; i++) {
            CHECK(memory.data()[i] == byte_at(offs + i));
        }
        const auto error = f.read(memory.data(), 2*LLAMA_EXPERT_DIRECT_ALIGN, size - offs + 1, offs);
        CHECK(error.find(file_name) != std::string::npos && error.find("ends before") != std::string::npos);
        CHECK(f.changes().empty());
#ifndef _WIN32
        CHECK(truncate(file_name, size - 1) == 0);
        CHECK(f.changes().find("changed while in use") != std::string::npos);
#endif
    }
    fclose(file);
    remove(file_name);
}

// random experts, from one slot for each size of slice to room for all, with several compute threads
static void test_budgets(uint64_t large, uint64_t small) {
    const test_model model(large, small);
    for (const int n_threads : { 1, 2, 4 }) {
        for (const uint64_t budget : { model.floor(), 3*model.floor(), 8*model.floor(), 4*model.bytes() }) {
            test_engine engine(model, budget, 3);
            barrier all(n_threads);
            std::vector<int>     experts;
            std::atomic<bool>    ok { true };
            std::vector<std::thread> threads;
            for (int ith = 0; ith < n_threads; ith++) {
                threads.emplace_back([&, ith]() {
                    std::minstd_rand random(budget);
                    for (int i_pass = 0; i_pass < 30; i_pass++) {
                        if (ith == 0) {
                            engine.direct.begin_pass();
                        }
                        for (int il = 0; il < model.n_layers; il++) {
                            if (ith == 0) {
                                experts.clear();
                                for (int e = 0; e < model.n_expert; e++) {
                                    if (i_pass % 7 == 0 || random() % 4 == 0) {
                                        experts.push_back(e);
                                    }
                                }
                                engine.direct.need(engine.ids(il, experts));
                                if (i_pass % 7 == 0 && il + 1 < model.n_layers) {
                                    engine.direct.read_ahead(engine.ids(il + 1, experts));
                                }
                            }
                            all.wait();
                            ok = engine.product(il, experts, ith, n_threads) && ok;
                            all.wait();
                        }
                        if (ith == 0) {
                            ok = engine.direct.end_pass() && ok;
                        }
                    }
                });
            }
            for (auto & thread : threads) {
                thread.join();
            }
            CHECK(ok);
            const auto stats = engine.direct.stats();
            CHECK(stats.n_errors == 0 && engine.direct.budget() <= budget && engine.direct.resident_bytes() <= budget);
            CHECK((stats.n_evicted > 0) == (budget < model.bytes()));
        }
    }
}

// what a pass over everything reads must not push out what the passes before it used
static void test_scan() {
    const test_model model(20000, 20000);
    const uint64_t slot = model.slot(20000);
    const std::vector<int> used = { 1, 6 };
    const std::vector<int> all  = { 0, 1, 2, 3, 4, 5, 6, 7 };

    test_engine engine(model, 48*slot); // half of all
    CHECK(engine.pass(used));
    engine.direct.reset_stats();
    CHECK(engine.pass(used));
    CHECK(engine.direct.stats().n_misses == 0);

    for (int i = 0; i < 3; i++) {
        CHECK(engine.pass(all));
    }
    engine.direct.reset_stats();
    CHECK(engine.pass(used));
    CHECK(engine.direct.stats().n_misses == 0);
}

// a budget below what each pass needs still keeps something from pass to pass
static void test_below_demand() {
    const test_model model(20000, 20000);
    test_engine engine(model, 12*model.slot(20000));
    const std::vector<int> used = { 0, 2, 4, 6 }; // 48 slices
    for (int i = 0; i < 4; i++) {
        CHECK(engine.pass(used));
    }
    engine.direct.reset_stats();
    CHECK(engine.pass(used));
    CHECK(engine.direct.stats().n_hits >= 6);
}

static void test_read_ahead() {
    const test_model model(20000, 9000);
    test_engine engine(model, 4*model.bytes());
    engine.direct.begin_pass();
    engine.direct.read_ahead(engine.ids(1, { 0, 1 }));
    engine.direct.read_ahead(engine.ids(2, { 3 }));
    engine.direct.need(engine.ids(0, { 5 }));
    CHECK(engine.product(0, { 5 }, 0, 1));
    engine.direct.need(engine.ids(1, { 1, 2 }));
    CHECK(engine.product(1, { 1, 2 }, 0, 1));
    engine.direct.need(engine.ids(2, { 3 }));
    CHECK(engine.product(2, { 3 }, 0, 1));
    CHECK(engine.direct.end_pass());

    const auto stats = engine.direct.stats();
    CHECK(stats.n_ahead == 9 && stats.n_ahead_used == 6 && stats.n_ahead_lost == 3);
    CHECK(stats.n_hits == 6 && stats.n_misses == 6);
}

// without need(): read when the product asks
static void test_unannounced() {
    const test_model model(20000, 9000);
    test_engine engine(model, model.floor());
    engine.direct.begin_pass();
    CHECK(engine.product(3, { 0, 7 }, 0, 1));
    CHECK(engine.direct.end_pass());
    CHECK(engine.direct.stats().n_evicted == 4);
}

static void test_drop() {
    const test_model model(20000, 9000);
    test_engine engine(model, 4*model.bytes());
    CHECK(engine.pass({ 0, 1 }));
    const uint64_t before = engine.direct.resident_bytes();
    engine.direct.drop(engine.layers[0][0].first);
    engine.direct.drop(engine.layers[0][0].first);
    engine.direct.drop(engine.layers[0][0].first + 5); // not there
    CHECK(engine.direct.resident_bytes() == before - 20000);
    CHECK(engine.pass({ 0, 1 }));
}

#ifndef _WIN32
// the file shrinks or is written to: passes end with an error, none with wrong bytes, none hangs
static void test_errors() {
    for (const bool is_shrunk : { true, false }) {
        test_model model(20000, 9000);
        test_engine engine(model, 3*model.floor());
        CHECK(engine.pass({ 0, 1 }));

        engine.direct.begin_pass();
        if (is_shrunk) {
            CHECK(truncate(file_name, 5000) == 0);
            engine.direct.need(engine.ids(3, { 4, 5 }));
            engine.product(3, { 4, 5 }, 0, 1);
            CHECK(!engine.direct.end_pass());
            CHECK(engine.direct.stats().n_errors > 0);
        } else {
            FILE * file = fopen(file_name, "r+b");
            CHECK(file && fputc('x', file) == 'x' && fclose(file) == 0);
            CHECK(!engine.direct.end_pass()); // what was read may be old or new
        }
        CHECK(!engine.pass({ 0, 1 })); // changed since
    }
}
#endif

// a second context waits for the end of the pass
static void test_passes_in_turn() {
    const test_model model(20000, 9000);
    test_engine engine(model, 2*model.floor());
    std::atomic<int> n { 0 };
    std::atomic<bool> ok { true };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++) {
        threads.emplace_back([&, i]() {
            for (int k = 0; k < 5; k++) {
                engine.direct.begin_pass();
                ok = n++ == 0 && ok;
                engine.direct.need(engine.ids(i, { k, k + 1 }));
                ok = engine.product(i, { k, k + 1 }, 0, 1) && ok;
                n--;
                ok = engine.direct.end_pass() && ok;
            }
        });
    }
    for (auto & thread : threads) {
        thread.join();
    }
    CHECK(ok);
}

int main() {
    test_arena();
    test_file();
    test_budgets(20000, 9000);
    test_budgets(5000, 5000);
    test_budgets(3*1024*1024/2, 300); // read in pieces
    test_scan();
    test_below_demand();
    test_read_ahead();
    test_unannounced();
    test_drop();
#ifndef _WIN32
    test_errors();
#endif
    test_passes_in_turn();
    printf("all tests passed\n");
    return 0;
}
