#pragma once

// What expert streaming asks of the operating system. Nothing here knows about models.

#include <cstddef>
#include <cstdint>

// a part of a mapped file
struct llama_expert_range {
    const void * addr;
    size_t       size;

    int      fd;   // the mapped file
    uint64_t offs; // position of addr in that file
};

size_t llama_expert_page_size();

// [first, last): the pages that hold at least one byte of the range
struct llama_expert_pages {
    uintptr_t first;
    uintptr_t last;
};

llama_expert_pages llama_expert_pages_outer(const llama_expert_range & range, size_t page_size);

// the pages that hold no byte outside of the range (may be empty)
llama_expert_pages llama_expert_pages_inner(const llama_expert_range & range, size_t page_size);

struct llama_expert_hint_result {
    size_t bytes;  // whole pages asked for
    size_t errors; // requests refused
};

// ask for the ranges to be read in the background; does not wait
llama_expert_hint_result llama_expert_io_hint(const llama_expert_range * ranges, size_t n_ranges);

// a page fault inside the range reads that page alone, without its neighbours
// returns false when the system refused or has no such notion
bool llama_expert_io_no_readahead(const llama_expert_range & range);

// drop from the page cache what lies before offs, and what was read ahead when that was read: touching such pages
// later would read megabytes of experts more
void llama_expert_io_forget_head(int fd, uint64_t offs);

// take the range out of memory: out of the process and out of the page cache, whole pages inside of it only
// returns false when the system refused
bool llama_expert_io_evict(const llama_expert_range & range);

struct llama_expert_io_usage {
    uint64_t read_bytes;
    uint64_t major_faults;
};

// of this process since its start
llama_expert_io_usage llama_expert_io_get_usage();
