#include "llama-expert-io.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <vector>

#ifdef _WIN32
    #define WIN32_LEAN_AND_MEAN
    #ifndef NOMINMAX
        #define NOMINMAX
    #endif
    #include <windows.h>
#else
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/resource.h>
    #include <unistd.h>
#endif

#if defined(__APPLE__)
    #include <libproc.h>
#endif

size_t llama_expert_page_size() {
#ifdef _WIN32
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
#else
    return (size_t) sysconf(_SC_PAGESIZE);
#endif
}

llama_expert_pages llama_expert_pages_outer(const llama_expert_range & range, size_t page_size) {
    const uintptr_t addr = (uintptr_t) range.addr;
    return { addr & ~(page_size - 1), (addr + range.size + page_size - 1) & ~(page_size - 1) };
}

llama_expert_pages llama_expert_pages_inner(const llama_expert_range & range, size_t page_size) {
    const uintptr_t addr  = (uintptr_t) range.addr;
    const uintptr_t first = (addr + page_size - 1) & ~(page_size - 1);
    return { first, std::max(first, (addr + range.size) & ~(page_size - 1)) };
}

#if defined(_WIN32)

// absent before Windows 8: without it the experts are simply faulted in
static bool prefetch_pages(const std::vector<llama_expert_pages> & pages) {
#if _WIN32_WINNT >= 0x602
    using prefetch_fn = BOOL (WINAPI *)(HANDLE, ULONG_PTR, PWIN32_MEMORY_RANGE_ENTRY, ULONG);

    static const prefetch_fn prefetch = (prefetch_fn) (void *) GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "PrefetchVirtualMemory");
    if (prefetch == nullptr) {
        return false;
    }

    std::vector<WIN32_MEMORY_RANGE_ENTRY> entries;
    entries.reserve(pages.size());
    for (const auto & p : pages) {
        entries.push_back({ (void *) p.first, (SIZE_T) (p.last - p.first) });
    }
    return prefetch(GetCurrentProcess(), entries.size(), entries.data(), 0) != 0;
#else
    (void) pages;
    return false;
#endif
}

llama_expert_hint_result llama_expert_io_hint(const llama_expert_range * ranges, size_t n_ranges) {
    const size_t page_size = llama_expert_page_size();

    llama_expert_hint_result result = { 0, 0 };

    std::vector<llama_expert_pages> pages;
    pages.reserve(n_ranges);
    for (size_t i = 0; i < n_ranges; i++) {
        pages.push_back(llama_expert_pages_outer(ranges[i], page_size));
        result.bytes += pages.back().last - pages.back().first;
    }
    if (n_ranges > 0 && !prefetch_pages(pages)) {
        result = { 0, n_ranges };
    }
    return result;
}

bool llama_expert_io_no_readahead(const llama_expert_range &) {
    return false;
}

void llama_expert_io_forget_head(int, uint64_t) {
}

bool llama_expert_io_evict(const llama_expert_range & range) {
    const auto pages = llama_expert_pages_inner(range, llama_expert_page_size());
    // unlocking pages that are not locked fails with this error, and takes them out of the working set
    return pages.first == pages.last || VirtualUnlock((void *) pages.first, pages.last - pages.first) || GetLastError() == ERROR_NOT_LOCKED;
}

llama_expert_io_usage llama_expert_io_get_usage() {
    // reads of mapped pages are in no counter, and the fault counter mixes soft faults in
    IO_COUNTERS io = {};
    GetProcessIoCounters(GetCurrentProcess(), &io);
    return { io.ReadTransferCount, 0 };
}

#else

llama_expert_hint_result llama_expert_io_hint(const llama_expert_range * ranges, size_t n_ranges) {
    const size_t page_size = llama_expert_page_size();

    // the kernel cuts one request to the larger of the device's request size and its read-ahead, silently;
    // no Linux device has less than this
    const size_t chunk_size = 128*1024;

    llama_expert_hint_result result = { 0, 0 };

    for (size_t i = 0; i < n_ranges; i++) {
        const auto pages = llama_expert_pages_outer(ranges[i], page_size);
        for (uintptr_t p = pages.first; p < pages.last; p += chunk_size) {
            const size_t size = std::min<size_t>(chunk_size, pages.last - p);
#if defined(__APPLE__)
            struct radvisory advice;
            advice.ra_offset = (off_t) (ranges[i].offs - ((uintptr_t) ranges[i].addr - p));
            advice.ra_count  = (int) size;
            const bool ok = fcntl(ranges[i].fd, F_RDADVISE, &advice) != -1;
#else
            const bool ok = madvise((void *) p, size, MADV_WILLNEED) == 0;
#endif
            if (ok) {
                result.bytes += size;
            } else {
                result.errors++;
            }
        }
    }
    return result;
}

bool llama_expert_io_no_readahead(const llama_expert_range & range) {
    // with the pages at the ends: a fault there would read the experts around it
    const auto pages = llama_expert_pages_outer(range, llama_expert_page_size());
    return pages.first < pages.last && madvise((void *) pages.first, pages.last - pages.first, MADV_RANDOM) == 0;
}

void llama_expert_io_forget_head(int fd, uint64_t offs) {
#if defined(__linux__)
    const uint64_t max_readahead = 16*1024*1024;
    posix_fadvise(fd, 0, (off_t) (offs + max_readahead), POSIX_FADV_DONTNEED);
#else
    (void) fd;
    (void) offs;
#endif
}

bool llama_expert_io_evict(const llama_expert_range & range) {
    const auto pages = llama_expert_pages_inner(range, llama_expert_page_size());
    if (pages.first == pages.last) {
        return true;
    }
    const size_t size = pages.last - pages.first;
    bool ok = madvise((void *) pages.first, size, MADV_DONTNEED) == 0;
#if defined(__linux__)
    // the page cache keeps what the process gives back, and only gives up pages that nobody has mapped
    const off_t offs = (off_t) (range.offs + (pages.first - (uintptr_t) range.addr));
    ok = posix_fadvise(range.fd, offs, (off_t) size, POSIX_FADV_DONTNEED) == 0 && ok;
#endif
    return ok;
}

llama_expert_io_usage llama_expert_io_get_usage() {
    llama_expert_io_usage result = { 0, 0 };

    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        result.major_faults = usage.ru_majflt;
    }
#if defined(__APPLE__)
    struct rusage_info_v2 info;
    if (proc_pid_rusage(getpid(), RUSAGE_INFO_V2, (rusage_info_t *) &info) == 0) {
        result.read_bytes = info.ri_diskio_bytesread;
    }
#elif defined(__linux__)
    FILE * file = fopen("/proc/self/io", "r");
    if (file) {
        char line[128];
        while (fgets(line, sizeof(line), file)) {
            if (sscanf(line, "read_bytes: %" SCNu64, &result.read_bytes) == 1) {
                break;
            }
        }
        fclose(file);
    }
#endif
    return result;
}

#endif
