#pragma once

// Streamed experts in memory of our own, read past the page cache: the engine of LLAMA_EXPERT_IO_DIRECT.
//
// The observer says what a layer needs (need); the slices that are not there are read in the order of use, each into a
// slot of the arena. The matrix product then asks for one slice after the other (get) and waits only for one that has
// not arrived. A slice that every thread is done with makes room for those that found none, so a layer may need
// more than the arena holds. Any slice that the product asks for is found or read, with or without need().
//
// One pass at a time: begin_pass waits for the end of the pass of another context.

#include "llama-expert-arena.h"
#include "llama-expert-io.h"
#include "llama-expert-reader.h"

#include "ggml-expert.h"

#include <chrono>
#include <deque>
#include <map>
#include <string>

struct llama_expert_direct_stats {
    uint64_t n_hits;
    uint64_t n_misses;
    uint64_t n_evicted;
    uint64_t evicted_bytes;
    uint64_t n_ahead; // slices asked for before the router chose
    uint64_t n_ahead_used;
    uint64_t n_ahead_lost;
    uint64_t stall_us; // time in which at least one compute thread waited for a slice
    uint64_t n_errors;
};

struct llama_expert_direct {
    // 0 = what memory allows; 0 threads = the default
    llama_expert_direct(uint64_t cache_size, int n_threads);
    ~llama_expert_direct();

    // while the model loads: takes n_expert slices of range from layer il, returns the number of the first
    uint32_t add_tensor(const llama_expert_range & range, int64_t n_expert, int il);

    // what the tensor's extra has to point to, for the slices from first on
    ggml_expert_slices * slices(uint32_t first);

    // after the last tensor; demand is what one token needs, resident what the mapped weights take beside
    void start(uint64_t demand, uint64_t resident);

    // false when the pass must not be computed, since a file is no longer what it was; to be ended all the same
    bool begin_pass();

    // false when not all slices could be read: what the pass computed is of no use
    bool end_pass();

    // of one layer, in the order of use; those of the layer before are no longer needed
    void need(const std::vector<uint32_t> & ids);

    // slices of a later layer of this pass that will probably be needed
    void read_ahead(const std::vector<uint32_t> & ids);

    // to keep a limit
    void drop(uint32_t id);

    llama_expert_direct_stats stats() const;
    void reset_stats();

    uint64_t budget() const;
    uint64_t resident_bytes() const;

private:
    struct slice {
        const llama_expert_file * file;
        uint64_t offs;
        uint64_t size;
        int32_t  layer;
        uint32_t tensor;
        uint32_t slot_class;

        uint32_t slot      = LLAMA_EXPERT_NONE;
        uint32_t n_done    = 0;     // threads of this layer's product that are through with it
        bool     is_needed = false; // by the layer that computes
        bool     is_missed = false; // read since, and for, this layer
        bool     is_ahead  = false; // read for a later layer
    };

    struct slot_state {
        bool     is_loading = false;
        bool     is_failed  = false;
        uint32_t n_parts    = 0; // reads under way
        uint32_t n_held     = 0; // threads that compute with it
    };

    struct held_slice {
        uint32_t id   = LLAMA_EXPERT_NONE;
        uint32_t slot = LLAMA_EXPERT_NONE;
    };

    struct class_state {
        std::deque<uint32_t> pending; // needed, without a slot yet
        uint32_t n_missed = 0;        // slots of slices that are missed or ahead
    };

    struct tensor_slices : ggml_expert_slices {
        llama_expert_direct * direct;
        uint32_t              first;
        std::vector<int32_t>  experts; // in the order to compute
    };

    static const char * get_slice(const ggml_expert_slices * slices, int64_t expert, int ith, int nth);

    const char * get(uint32_t id, int ith, int nth);

    // all of these with the mutex held
    void open_arena();
    void put_in_order(const std::vector<uint32_t> & ids);
    bool reserve(uint32_t id, uint32_t max_missed);
    bool steal(uint32_t slot_class);
    void forget(uint32_t slot);
    void load(uint32_t id);
    void serve_pending();
    void settle(uint32_t id);
    void release(int ith, int nth);
    void end_layer();
    void lose_ahead(int layer); // -1: of all layers
    void wait(std::unique_lock<std::mutex> & lock);
    void wake();

    void look_at_files();
    void drain(std::unique_lock<std::mutex> & lock);

    void on_read(uint32_t slot, const std::string & error);
    void end_part(uint32_t slot, bool is_failed);

    const uint64_t cache_size;
    const int      n_threads;

    uint64_t demand   = 0;
    uint64_t resident = 0;

    std::map<int, std::unique_ptr<llama_expert_file>> files; // by the loader's descriptor
    std::vector<llama_expert_slot_class>              classes;
    std::deque<tensor_slices>                         tensors; // addresses stay
    int                                               n_layers = 0;
    int                                               last_layer = -1;

    std::mutex pass_mutex; // held from begin_pass to end_pass

    mutable std::mutex      mutex; // of what follows
    std::condition_variable changed;

    std::vector<slice>                  all;
    std::unique_ptr<llama_expert_arena> arena;
    std::vector<slot_state>             states;       // by slot
    std::vector<class_state>            class_states;
    std::vector<held_slice>             held;         // by compute thread
    std::vector<uint32_t>               current;      // what the layer needs
    std::deque<uint32_t>                ahead;        // to be read
    std::vector<uint32_t>               taken_ahead;  // read, or being read
    bool                                is_scan = false; // the pass needs more than the arena holds: what it reads goes first
    std::string                         pass_error;
    std::unique_ptr<llama_expert_memory> zeros;          // instead of a slice that could not be read
    uint64_t                            n_resident = 0;
    uint64_t                            n_reading  = 0; // parts of slices

    int                                   n_waiting = 0;
    std::chrono::steady_clock::time_point wait_start;
    llama_expert_direct_stats             counters = {};

    std::unique_ptr<llama_expert_reader> reader; // last: its threads use the rest
};
