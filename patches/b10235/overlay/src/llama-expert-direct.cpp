#include "llama-expert-direct.h"

#include "llama-impl.h"

#include <algorithm>
#include <cinttypes>

// more cost system time without being faster
static constexpr int DEFAULT_THREADS = 6;

// A slice is read in pieces of this size at once: the first one needed arrives before those behind it.
static constexpr size_t MAX_READ_SIZE = 512*1024;

static uint64_t align_up(uint64_t value) {
    return (value + LLAMA_EXPERT_DIRECT_ALIGN - 1) & ~(uint64_t) (LLAMA_EXPERT_DIRECT_ALIGN - 1);
}

static uint64_t align_down(uint64_t value) {
    return value & ~(uint64_t) (LLAMA_EXPERT_DIRECT_ALIGN - 1);
}

static double mib(uint64_t bytes) {
    return bytes/1024.0/1024.0;
}

llama_expert_direct::llama_expert_direct(uint64_t cache_size, int n_threads) :
    cache_size(cache_size), n_threads(n_threads > 0 ? n_threads : DEFAULT_THREADS), held(GGML_MAX_N_THREADS) {
}

llama_expert_direct::~llama_expert_direct() = default;

//
// while the model loads
//

uint32_t llama_expert_direct::add_tensor(const llama_expert_range & range, int64_t n_expert, int il) {
    auto & file = files[range.fd];
    if (!file) {
        file = std::make_unique<llama_expert_file>(range.fd);
    }
    const uint64_t size      = range.size/n_expert;
    const size_t   slot_size = align_up(size + LLAMA_EXPERT_DIRECT_ALIGN - 1); // wherever in a block the slice begins

    size_t i_class = 0;
    while (i_class < classes.size() && classes[i_class].slot_size != slot_size) {
        i_class++;
    }
    if (i_class == classes.size()) {
        classes.push_back({ slot_size, 0 });
    }
    classes[i_class].n_slices += n_expert;

    n_layers  += il != last_layer;
    last_layer = il;

    const uint32_t first = all.size();
    tensors.emplace_back();
    auto & t = tensors.back();
    t.get    = get_slice;
    t.order  = nullptr;
    t.direct = this;
    t.first  = first;
    t.experts.resize(n_expert);

    for (int64_t e = 0; e < n_expert; e++) {
        slice s;
        s.file       = file.get();
        s.offs       = range.offs + e*size;
        s.size       = size;
        s.layer      = il;
        s.tensor     = tensors.size() - 1;
        s.slot_class = i_class;
        all.push_back(s);
    }
    return first;
}

ggml_expert_slices * llama_expert_direct::slices(uint32_t first) {
    return &tensors[all[first].tensor];
}

void llama_expert_direct::start(uint64_t demand, uint64_t resident) {
    this->demand   = demand;
    this->resident = resident;

    size_t largest = 0;
    for (const auto & c : classes) {
        largest = std::max(largest, c.slot_size);
    }
    zeros  = std::make_unique<llama_expert_memory>(largest);
    reader = std::make_unique<llama_expert_reader>(n_threads, [this](uint32_t slot, const std::string & error) { on_read(slot, error); });
    if (cache_size > 0) {
        open_arena();
    }
}

// Without a size it is made when the first pass begins: what the context takes is gone from the available memory then,
// except for what it has not touched yet.
void llama_expert_direct::open_arena() {
    uint64_t size  = 0;
    uint64_t floor = 0;
    for (const auto & c : classes) {
        size  += c.slot_size*c.n_slices;
        floor += c.slot_size;
    }
    if (cache_size > 0) {
        size = std::min(size, cache_size);
    } else {
        const uint64_t available = llama_expert_memory_available();
        const uint64_t reserve   = 256*1024*1024 + available/16 + resident;
        size = available == 0 ? size : std::min(size, std::max(available - std::min(available, reserve), std::max(demand, floor)));
    }
    try {
        arena = std::make_unique<llama_expert_arena>(size, classes);
    } catch (const std::bad_alloc &) {
        throw std::runtime_error(format("expert_stream: no memory for experts: %.2f MiB", mib(size)));
    }
    states      .resize(arena->n_slots());
    class_states.resize(classes.size());

    const bool is_direct = std::all_of(files.begin(), files.end(), [](const auto & it) { return it.second->is_direct(); });
    LLAMA_LOG_INFO("expert_stream: budget = %.2f MiB in %u slots, %d reader threads, %s\n",
            mib(arena->bytes()), arena->n_slots(), n_threads, is_direct ? "direct I/O" : "buffered reads (the file system refuses direct I/O)");
    if (arena->bytes() < demand) {
        LLAMA_LOG_WARN("expert_stream: budget of %.2f MiB is below one token's demand of %.2f MiB: most experts are read again for every token\n",
                mib(arena->bytes()), mib(demand));
    }
}

//
// passes
//

void llama_expert_direct::look_at_files() {
    for (const auto & it : files) {
        if (pass_error.empty()) {
            pass_error = it.second->changes();
        }
    }
}

bool llama_expert_direct::begin_pass() {
    pass_mutex.lock();

    std::lock_guard<std::mutex> lock(mutex);
    look_at_files();
    if (!arena) {
        try {
            open_arena();
        } catch (const std::exception & e) {
            pass_error = e.what();
        }
    }
    return pass_error.empty();
}

// no read of a pass that failed may end in the next one
void llama_expert_direct::drain(std::unique_lock<std::mutex> & lock) {
    for (const auto slot : reader->drop_waiting()) {
        end_part(slot, true);
    }
    changed.wait(lock, [this]() { return n_reading == 0; });
}

bool llama_expert_direct::end_pass() {
    bool ok;
    {
        std::unique_lock<std::mutex> lock(mutex);
        ahead.clear();
        end_layer();
        lose_ahead(-1);
        look_at_files(); // what was read since may be of another file
        ok = pass_error.empty();
        if (!ok) {
            LLAMA_LOG_ERROR("expert_stream: %s\n", pass_error.c_str());
            drain(lock);
            pass_error.clear();
        }
    }
    pass_mutex.unlock();
    return ok;
}

void llama_expert_direct::need(const std::vector<uint32_t> & ids) {
    std::lock_guard<std::mutex> lock(mutex);
    end_layer();
    if (!arena || ids.empty()) {
        return;
    }
    current = ids;
    put_in_order(ids);

    uint64_t bytes = 0;
    for (const auto id : ids) {
        bytes += classes[all[id].slot_class].slot_size;
    }
    is_scan = bytes*n_layers > arena->bytes();

    for (const auto id : ids) { // first what is there, so that nothing of it makes room for the rest
        auto & s = all[id];
        s.n_done    = 0;
        s.is_needed = true;
        if (s.slot != LLAMA_EXPERT_NONE) {
            counters.n_hits++;
            arena->hold(s.slot);
        } else {
            counters.n_misses++;
            class_states[s.slot_class].pending.push_back(id);
        }
        if (s.is_ahead) {
            s.is_ahead = false;
            counters.n_ahead_used++;
        }
    }
    const int32_t layer = all[ids[0]].layer;
    ahead.erase(std::remove_if(ahead.begin(), ahead.end(), [&](uint32_t id) { return all[id].layer == layer; }), ahead.end());
    lose_ahead(layer);
    serve_pending();
}

void llama_expert_direct::read_ahead(const std::vector<uint32_t> & ids) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!arena) {
        return;
    }
    for (const auto id : ids) {
        if (all[id].slot == LLAMA_EXPERT_NONE) {
            ahead.push_back(id);
        }
    }
    serve_pending();
}

void llama_expert_direct::drop(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    const uint32_t slot = all[id].slot;
    if (slot != LLAMA_EXPERT_NONE && (*arena)[slot].is_listed) {
        forget(slot);
        arena->release_free(slot);
    }
}

// the experts that are there come first, so that they are computed while the others are read
void llama_expert_direct::put_in_order(const std::vector<uint32_t> & ids) {
    for (size_t i = 0; i < ids.size();) {
        auto & t = tensors[all[ids[i]].tensor];
        const size_t n = t.experts.size();
        std::vector<int> group(n, 2); // not needed
        for (; i < ids.size() && ids[i] - t.first < n; i++) {
            const uint32_t slot = all[ids[i]].slot;
            group[ids[i] - t.first] = slot != LLAMA_EXPERT_NONE && !states[slot].is_loading ? 0 : 1;
        }
        size_t n_put = 0;
        for (int g = 0; g < 3; g++) {
            for (size_t e = 0; e < n; e++) {
                if (group[e] == g) {
                    t.experts[n_put++] = e;
                }
            }
        }
        t.order = t.experts.data();
    }
}

// what a layer has not asked for until the next one begins, it does not need
void llama_expert_direct::end_layer() {
    for (size_t i = 0; i < held.size(); i++) {
        release(i, 0);
    }
    for (auto & c : class_states) {
        c.pending.clear();
    }
    for (const auto id : current) {
        all[id].is_needed = false;
        settle(id);
    }
    current.clear();
}

void llama_expert_direct::lose_ahead(int layer) {
    size_t n = 0;
    for (const auto id : taken_ahead) {
        auto & s = all[id];
        if (layer >= 0 && s.layer != layer) {
            taken_ahead[n++] = id;
        } else if (s.is_ahead) {
            s.is_ahead = false;
            counters.n_ahead_lost++;
            settle(id);
        }
    }
    taken_ahead.resize(n);
}

//
// slots
//

// takes a slot and starts to read; false when there is none to take
bool llama_expert_direct::reserve(uint32_t id, uint32_t max_missed) {
    auto & s = all[id];
    auto & c = class_states[s.slot_class];
    if (c.n_missed >= max_missed) {
        return false;
    }
    const uint32_t slot = arena->take(s.slot_class);
    if (slot == LLAMA_EXPERT_NONE) {
        return false;
    }
    if ((*arena)[slot].slice != LLAMA_EXPERT_NONE) {
        forget(slot);
    }
    (*arena)[slot].slice = id;
    s.slot      = slot;
    s.n_done    = 0;
    s.is_missed = true;
    c.n_missed++;
    load(id);
    return true;
}

// the slice in the slot is no longer there
void llama_expert_direct::forget(uint32_t slot) {
    auto & s = all[(*arena)[slot].slice];
    if (!states[slot].is_failed) {
        n_resident -= s.size;
        counters.n_evicted++;
        counters.evicted_bytes += s.size;
    }
    if (s.is_missed) {
        s.is_missed = false;
        class_states[s.slot_class].n_missed--;
    }
    s.slot = LLAMA_EXPERT_NONE;
    (*arena)[slot].slice = LLAMA_EXPERT_NONE;
}

// For a thread that has nothing to compute with: makes a slot of what no thread has come to yet free. What one is
// through with stays until all are, or the last to come would wait for a slot that the first holds at the barrier.
bool llama_expert_direct::steal(uint32_t slot_class) {
    uint32_t best = LLAMA_EXPERT_NONE;
    for (uint32_t i = 0; i < arena->n_slots(); i++) {
        const auto & slot = (*arena)[i];
        if (slot.slot_class != slot_class || slot.is_listed || slot.slice == LLAMA_EXPERT_NONE ||
                states[i].is_loading || states[i].n_held > 0 || all[slot.slice].n_done > 0) {
            continue;
        }
        best = i;
        if (all[slot.slice].is_ahead) {
            break;
        }
    }
    if (best == LLAMA_EXPERT_NONE) {
        return false;
    }
    auto & s = all[(*arena)[best].slice];
    if (s.is_ahead) {
        s.is_ahead = false;
        counters.n_ahead_lost++;
    }
    forget(best);
    arena->release_free(best);
    return true;
}

void llama_expert_direct::load(uint32_t id) {
    const auto & s    = all[id];
    auto &       st   = states[s.slot];
    uint8_t *    addr = (*arena)[s.slot].addr;

    const uint64_t first    = align_down(s.offs);
    const uint64_t n_needed = s.offs - first + s.size;
    const uint64_t n_all    = align_up(n_needed);

    st = {};
    st.is_loading = true;
    st.n_parts    = (n_all + MAX_READ_SIZE - 1)/MAX_READ_SIZE;

    const uint32_t slot = s.slot;
    const uint64_t size = align_up((n_all + st.n_parts - 1)/st.n_parts);
    st.n_parts = (n_all + size - 1)/size;
    n_reading += st.n_parts;
    for (uint64_t i = 0; i < n_all; i += size) {
        const uint64_t n = std::min(size, n_all - i);
        reader->push({ s.file, first + i, addr + i, (size_t) n, (size_t) std::min(n, n_needed - i), slot });
    }
}

void llama_expert_direct::on_read(uint32_t slot, const std::string & error) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!error.empty()) {
        counters.n_errors++;
        if ((all[(*arena)[slot].slice].is_needed || states[slot].n_held > 0) && pass_error.empty()) {
            pass_error = error;
            wake();
        }
    }
    end_part(slot, !error.empty());
    if (n_reading == 0) {
        changed.notify_all();
    }
}

void llama_expert_direct::end_part(uint32_t slot, bool is_failed) {
    auto & st = states[slot];
    auto & s  = all[(*arena)[slot].slice];
    n_reading--;
    st.is_failed = st.is_failed || is_failed;
    if (--st.n_parts > 0) {
        return;
    }
    st.is_loading = false;
    if (st.is_failed) {
        if (st.n_held == 0) {
            s.is_ahead = false;
            forget(slot);
            arena->release_free(slot);
        }
    } else {
        n_resident += s.size;
        settle((*arena)[slot].slice);
    }
    wake();
}

// makes the slice evictable when nobody needs it any more
void llama_expert_direct::settle(uint32_t id) {
    auto & s = all[id];
    if (s.slot == LLAMA_EXPERT_NONE || s.is_needed || s.is_ahead) {
        return;
    }
    const auto & st = states[s.slot];
    if (st.is_loading || st.n_held > 0 || (*arena)[s.slot].is_listed) {
        return;
    }
    if (st.is_failed) {
        const uint32_t slot = s.slot;
        forget(slot);
        arena->release_free(slot);
    } else if (is_scan && s.is_missed) {
        arena->release_first(s.slot);
    } else {
        arena->release_last(s.slot);
    }
    if (s.is_missed) {
        s.is_missed = false;
        class_states[s.slot_class].n_missed--;
    }
    serve_pending();
    wake();
}

// A pass that needs more than there is room for must not push everything else out: its misses share a quarter.
void llama_expert_direct::serve_pending() {
    bool is_empty = true;
    for (size_t i = 0; i < classes.size(); i++) {
        auto & pending = class_states[i].pending;
        const uint32_t max_missed = is_scan ? std::max(1u, arena->n_slots(i)/4) : UINT32_MAX;
        while (!pending.empty()) {
            const auto & s = all[pending.front()];
            if (s.is_needed && s.slot == LLAMA_EXPERT_NONE && !reserve(pending.front(), max_missed)) {
                break;
            }
            pending.pop_front();
        }
        is_empty = is_empty && pending.empty();
    }
    while (is_empty && !ahead.empty()) {
        const uint32_t id = ahead.front();
        auto & s = all[id];
        if (s.slot == LLAMA_EXPERT_NONE) {
            if (!reserve(id, std::max(1u, arena->n_slots(s.slot_class)/4))) {
                break;
            }
            s.is_ahead = true;
            taken_ahead.push_back(id);
            counters.n_ahead++;
        }
        ahead.pop_front();
    }
}

//
// compute threads
//

const char * llama_expert_direct::get_slice(const ggml_expert_slices * slices, int64_t expert, int ith, int nth) {
    const auto & t = *(const tensor_slices *) slices;
    return t.direct->get(t.first + expert, ith, nth);
}

// the thread is through with what it got last
void llama_expert_direct::release(int ith, int nth) {
    const auto h = held[ith];
    if (h.id == LLAMA_EXPERT_NONE) {
        return;
    }
    held[ith] = {};
    auto & s = all[h.id];
    states[h.slot].n_held--;
    if (s.is_needed && nth > 0 && ++s.n_done >= (uint32_t) nth) {
        s.is_needed = false;
    }
    settle(h.id);
    wake(); // for who would steal it
}

const char * llama_expert_direct::get(uint32_t id, int ith, int nth) {
    std::unique_lock<std::mutex> lock(mutex);
    release(ith, nth);

    auto & s = all[id];
    if (!s.is_needed) { // nobody announced it
        s.is_needed = true;
        s.n_done    = 0;
        current.push_back(id);
    }
    while (pass_error.empty()) {
        if (s.slot == LLAMA_EXPERT_NONE && !reserve(id, UINT32_MAX)) {
            if (!steal(s.slot_class)) {
                wait(lock);
            }
            continue;
        }
        const uint32_t slot = s.slot;
        held[ith] = { id, slot };
        states[slot].n_held++;
        arena->hold(slot);
        while (states[slot].is_loading && pass_error.empty()) {
            wait(lock);
        }
        if (pass_error.empty()) {
            return (const char *) (*arena)[slot].addr + (s.offs - align_down(s.offs));
        }
    }
    return (const char *) zeros->data();
}

void llama_expert_direct::wait(std::unique_lock<std::mutex> & lock) {
    if (n_waiting++ == 0) {
        wait_start = std::chrono::steady_clock::now();
    }
    changed.wait(lock);
    if (--n_waiting == 0) {
        counters.stall_us += std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - wait_start).count();
    }
}

void llama_expert_direct::wake() {
    if (n_waiting > 0) {
        changed.notify_all();
    }
}

//
// statistics
//

llama_expert_direct_stats llama_expert_direct::stats() const {
    std::lock_guard<std::mutex> lock(mutex);
    return counters;
}

void llama_expert_direct::reset_stats() {
    std::lock_guard<std::mutex> lock(mutex);
    counters = {};
}

uint64_t llama_expert_direct::budget() const {
    std::lock_guard<std::mutex> lock(mutex);
    return arena ? arena->bytes() : cache_size;
}

uint64_t llama_expert_direct::resident_bytes() const {
    std::lock_guard<std::mutex> lock(mutex);
    return n_resident;
}
