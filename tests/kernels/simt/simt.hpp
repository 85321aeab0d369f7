// A small SIMT machine on one host thread: each CUDA thread of a block is a fiber, blocks run one after the
// other.
//
// What it is for: to run kernels under the sanitizers and to catch what a debugger on a GPU would hardly
// show. Fibers go on until they wait at a barrier or exchange values in their warp, in an order that the
// caller chooses, so that code which needs a barrier that is not there reads noise under one order or
// another; shared memory is noise at the start of every block. Waiting that can never end is reported as what
// it is: a barrier that not all threads reach.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
extern unsigned char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
}

namespace simt {

struct Index {
    unsigned x, y, z;
};
inline Index thread_index, block_index, grid_size;

constexpr unsigned WARP = 32;
constexpr size_t STACK_BYTES = 256 << 10;

enum class Wait { NONE, BARRIER, SHUFFLE, VOTE, DONE };

struct Fiber {
    ucontext_t context;
    void* stack = nullptr;
    Wait wait = Wait::NONE;
    int line = 0;         // of the barrier it waits at
    unsigned exchanges = 0;
    void* fake_stack = nullptr;
};

struct Warp {
    // Two, so that a lane may already offer its next value while another still reads this one.
    unsigned long long offered[2][WARP];
};

struct Machine {
    ucontext_t scheduler;
    void* scheduler_fake_stack = nullptr;
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    unsigned current = 0;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    char* message = nullptr;
    size_t message_bytes = 0;
    bool failed = false;
};
inline Machine machine;

inline void fail(const char* format, ...) {
    if (machine.failed) return;
    machine.failed = true;
    va_list values;
    va_start(values, format);
    vsnprintf(machine.message, machine.message_bytes, format, values);
    va_end(values);
}

inline void to_scheduler(bool leaving) {
    Fiber& fiber = machine.fibers[machine.current];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(leaving ? nullptr : &fiber.fake_stack, machine.scheduler_stack,
                                   machine.scheduler_stack_bytes);
#endif
    (void)leaving;
    swapcontext(&fiber.context, &machine.scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(machine.fibers[machine.current].fake_stack, nullptr, nullptr);
#endif
}

inline void wait_as(Wait wait, int line = 0) {
    Fiber& fiber = machine.fibers[machine.current];
    fiber.wait = wait;
    fiber.line = line;
    to_scheduler(false);
}

inline void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack, &machine.scheduler_stack_bytes);
#endif
    machine.body(machine.argument);
    machine.fibers[machine.current].wait = Wait::DONE;
    to_scheduler(true);
}

inline void run(unsigned index) {
    Fiber& fiber = machine.fibers[index];
    machine.current = index;
    thread_index = {index, 0, 0};
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&machine.scheduler_fake_stack, fiber.stack, STACK_BYTES);
#endif
    swapcontext(&machine.scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(machine.scheduler_fake_stack, nullptr, nullptr);
#endif
}

inline void sync_threads(int line) { wait_as(Wait::BARRIER, line); }

template <class T, class From>
inline T exchange(unsigned mask, T value, From from, Wait kind = Wait::SHUFFLE) {
    static_assert(sizeof(T) <= sizeof(unsigned long long));
    if (mask != 0xFFFFFFFFu) fail("exchange with mask %08x: only whole warps are used", mask);
    const unsigned lane = machine.current % WARP;
    Fiber& fiber = machine.fibers[machine.current];
    Warp& warp = machine.warps[machine.current / WARP];
    auto& offered = warp.offered[fiber.exchanges++ % 2];
    offered[lane] = 0;
    std::memcpy(&offered[lane], &value, sizeof(T));
    wait_as(kind);
    const unsigned source = from(lane);
    if (source >= WARP) fail("exchange with lane %u", source);
    std::memcpy(&value, &offered[source % WARP], sizeof(T));
    return value;
}

inline bool any(unsigned mask, bool value) {
    bool result = false;
    const unsigned lane = machine.current % WARP;
    const unsigned parity = machine.fibers[machine.current].exchanges % 2;
    exchange(mask, static_cast<unsigned>(value), [=](unsigned) { return lane; }, Wait::VOTE);
    for (unsigned other = 0; other < WARP; ++other) result |= machine.warps[machine.current / WARP].offered[parity][other] != 0;
    return result;
}

// Order 0 is ascending, 1 descending, others shuffle.
inline std::vector<unsigned> ordered(unsigned count, unsigned order, unsigned turn) {
    std::vector<unsigned> sequence(count);
    for (unsigned i = 0; i < count; ++i) sequence[i] = order == 1 ? count - 1 - i : i;
    unsigned long long state = (order * 2654435761ull) ^ turn;
    for (unsigned i = count; order > 1 && i > 1; --i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(sequence[i - 1], sequence[(state >> 33) % i]);
    }
    return sequence;
}

inline const char* name_of(Wait wait) {
    switch (wait) {
        case Wait::BARRIER: return "a barrier";
        case Wait::SHUFFLE: return "a shuffle";
        case Wait::VOTE: return "a vote";
        case Wait::DONE: return "the end";
        default: return "nothing";
    }
}

// All of [first, first + count) wait for the same thing: let them go on. True where they did.
inline bool release(unsigned first, unsigned count, bool barrier) {
    const Fiber& one = machine.fibers[first];
    const bool fits = barrier ? one.wait == Wait::BARRIER : one.wait == Wait::SHUFFLE || one.wait == Wait::VOTE;
    if (!fits) return false;
    for (unsigned i = first; i < first + count; ++i) {
        if (machine.fibers[i].wait != one.wait || machine.fibers[i].line != one.line) return false;
    }
    for (unsigned i = first; i < first + count; ++i) machine.fibers[i].wait = Wait::NONE;
    return true;
}

inline void report_stuck(unsigned threads) {
    for (unsigned i = 1; i < threads; ++i) {
        const Fiber &a = machine.fibers[0], &b = machine.fibers[i];
        if (a.wait != b.wait || a.line != b.line) {
            return fail("divergent: thread 0 is at %s (line %d), thread %u at %s (line %d)", name_of(a.wait), a.line, i,
                        name_of(b.wait), b.line);
        }
    }
    fail("divergent: a warp waits for lanes that do not come");
}

// Its own function, and not memset: the sanitizer guards the gaps between the variables.
__attribute__((no_sanitize("address", "undefined"))) inline void fill_shared_with_noise(unsigned order) {
    // NaN, or a huge number under odd orders: a maximum passes over the one, a comparison over the other.
    const unsigned char noise = order % 2 ? 0x7B : 0xFF;
    if (!__start_simt_shared) return;
    for (volatile unsigned char* at = __start_simt_shared; at < __stop_simt_shared; ++at) *at = noise;
}

inline void run_block(unsigned threads, unsigned order) {
    fill_shared_with_noise(order);
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = machine.fibers[i];
        fiber.wait = Wait::NONE;
        fiber.exchanges = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack = {fiber.stack, 0, STACK_BYTES};
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
    }
    const unsigned warps = threads / WARP;
    for (unsigned turn = 0; !machine.failed; ++turn) {
        bool moved = false;
        unsigned done = 0;
        for (unsigned warp : ordered(warps, order, turn)) {
            do {
                for (unsigned lane : ordered(WARP, order, turn)) {
                    const unsigned index = warp * WARP + lane;
                    if (machine.fibers[index].wait != Wait::NONE) continue;
                    run(index);
                    moved = true;
                }
            } while (release(warp * WARP, WARP, false));
        }
        for (unsigned i = 0; i < threads; ++i) done += machine.fibers[i].wait == Wait::DONE;
        if (done == threads) return;
        if (!release(0, threads, true) && !moved) report_stuck(threads);
    }
}

inline int launch(const unsigned* grid, unsigned threads, unsigned order, void (*body)(void*), void* argument,
                  char* message, size_t message_bytes) {
    machine.message = message;
    machine.message_bytes = message_bytes;
    machine.failed = false;
    machine.body = body;
    machine.argument = argument;
    if (threads == 0 || threads % WARP || threads > 1024) fail("%u threads are no whole number of warps up to 1024", threads);
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) fail("a grid CUDA would refuse");
    while (machine.fibers.size() < threads) {
        Fiber fiber = {};
        fiber.stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        machine.fibers.push_back(fiber);
    }
    machine.warps.resize(threads / WARP + 1);
    grid_size = {grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < grid[2] && !machine.failed; ++z)
        for (unsigned y = 0; y < grid[1] && !machine.failed; ++y)
            for (unsigned x = 0; x < grid[0] && !machine.failed; ++x) {
                block_index = {x, y, z};
                run_block(threads, order);
            }
    return machine.failed;
}

template <class... Parameters>
struct Kernel {
    void (*function)(Parameters...);
    void** arguments;

    template <size_t... I>
    void call(std::index_sequence<I...>) {
        function(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
    }
    static void body(void* self) { static_cast<Kernel*>(self)->call(std::index_sequence_for<Parameters...>{}); }
};

template <class... Parameters>
int start(void (*function)(Parameters...), const unsigned* grid, unsigned threads, unsigned order, void** arguments,
          const unsigned* sizes, unsigned count, char* message, size_t message_bytes) {
    const unsigned wanted[] = {sizeof(Parameters)...};
    bool fits = count == sizeof...(Parameters);
    for (unsigned i = 0; fits && i < count; ++i) fits = sizes[i] == wanted[i];
    if (!fits) {
        snprintf(message, message_bytes, "the arguments are not the kernel's parameters in number and size");
        return 1;
    }
    Kernel<Parameters...> kernel = {function, arguments};
    return launch(grid, threads, order, Kernel<Parameters...>::body, &kernel, message, message_bytes);
}

}  // namespace simt

#define SIMT_KERNEL(name)                                                                                            \
    extern "C" int simt_##name(const unsigned* grid, unsigned threads, unsigned order, void** arguments,             \
                               const unsigned* sizes, unsigned count, char* message, size_t message_bytes) {         \
        return simt::start(name, grid, threads, order, arguments, sizes, count, message, message_bytes);             \
    }
