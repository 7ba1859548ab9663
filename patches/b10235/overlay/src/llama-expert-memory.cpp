#include "llama-expert-memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <new>
#include <string>

#ifdef _WIN32
    #define WIN32_LEAN_AND_MEAN
    #ifndef NOMINMAX
        #define NOMINMAX
    #endif
    #include <windows.h>
#else
    #include <sys/mman.h>
    #include <unistd.h>
#endif

#if defined(__APPLE__)
    #include <mach/mach.h>
#endif

#if defined(__linux__)

static bool read_number(const std::string & path, uint64_t & value) {
    std::ifstream file(path);
    return bool(file >> value); // not for "max"
}

// the sum of these keys of a file with lines "key value"
static uint64_t read_keys(const std::string & path, std::initializer_list<const char *> keys) {
    std::ifstream file(path);
    std::string   key;
    uint64_t      value;
    uint64_t      sum = 0;
    while (file >> key >> value) {
        if (std::any_of(keys.begin(), keys.end(), [&](const char * k) { return key == k; })) {
            sum += value;
        }
    }
    return sum;
}

// The page cache of the group counts against its limit but is given back for the asking; the rest is not.
// Version 1 counts its "rss" without huge pages of shared memory, and "total_" includes the groups below.
static uint64_t group_available(const std::string & dir, bool is_v2) {
    uint64_t limit;
    if (!read_number(dir + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"), limit)) {
        return UINT64_MAX;
    }
    uint64_t used = is_v2 ?
        read_keys(dir + "/memory.stat", { "anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables", "sock" }) :
        read_keys(dir + "/memory.stat", { "total_rss", "total_shmem" });
    uint64_t kernel = 0;
    if (!is_v2 && read_number(dir + "/memory.kmem.usage_in_bytes", kernel)) {
        used += kernel;
    }
    return limit - std::min(limit, used);
}

// of the process's group and of those above it
static uint64_t groups_available() {
    uint64_t result = UINT64_MAX;

    std::ifstream file("/proc/self/cgroup");
    std::string   line;
    while (std::getline(file, line)) { // number:controllers:path
        const size_t i0 = line.find(':');
        const size_t i1 = line.find(':', i0 + 1);
        if (i1 == std::string::npos) {
            continue;
        }
        const std::string controllers = "," + line.substr(i0 + 1, i1 - i0 - 1) + ",";
        const bool        is_v2       = controllers == ",,";
        if (!is_v2 && controllers.find(",memory,") == std::string::npos) {
            continue;
        }
        const std::string root = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (std::string path = line.substr(i1 + 1);; path.erase(path.rfind('/'))) {
            result = std::min(result, group_available(root + (path == "/" ? "" : path), is_v2));
            if (path.empty() || path == "/" || path.rfind('/') == std::string::npos) {
                break;
            }
        }
        // where the group's path is not visible from inside of a container, its root is the group
        result = std::min(result, group_available(root, is_v2));
    }
    return result;
}

uint64_t llama_expert_memory_available() {
    std::ifstream file("/proc/meminfo");
    std::string   line;
    while (std::getline(file, line)) {
        uint64_t kib;
        if (sscanf(line.c_str(), "MemAvailable: %" SCNu64 " kB", &kib) == 1) {
            return std::min(kib*1024, groups_available());
        }
    }
    return 0;
}

#elif defined(_WIN32)

uint64_t llama_expert_memory_available() {
    MEMORYSTATUSEX status = {};
    status.dwLength = sizeof(status);
    return GlobalMemoryStatusEx(&status) ? std::min(status.ullAvailPhys, status.ullAvailPageFile) : 0;
}

#elif defined(__APPLE__)

uint64_t llama_expert_memory_available() {
    vm_statistics64_data_t stat;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t) &stat, &count) != KERN_SUCCESS) {
        return 0;
    }
    return (uint64_t) (stat.free_count + stat.inactive_count + stat.purgeable_count)*sysconf(_SC_PAGESIZE);
}

#else

uint64_t llama_expert_memory_available() {
    return 0;
}

#endif

#ifdef _WIN32

llama_expert_memory::llama_expert_memory(size_t size) : size(size) {
    addr = (uint8_t *) VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (addr == nullptr) {
        throw std::bad_alloc();
    }
}

llama_expert_memory::~llama_expert_memory() {
    VirtualFree(addr, 0, MEM_RELEASE);
}

#else

llama_expert_memory::llama_expert_memory(size_t size) : size(size) {
#ifdef MAP_NORESERVE
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    void * result = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (result == MAP_FAILED) {
        throw std::bad_alloc();
    }
    addr = (uint8_t *) result;
    // no huge pages: a slice waits while they are cleared, and once the arena was full they gained nothing
#ifdef MADV_DONTDUMP
    madvise(addr, size, MADV_DONTDUMP);
#endif
}

llama_expert_memory::~llama_expert_memory() {
    munmap(addr, size);
}

#endif
