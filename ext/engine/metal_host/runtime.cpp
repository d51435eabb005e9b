#include "runtime.hpp"

#include "random.hpp"

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace host {
namespace {

constexpr size_t STACK_BYTES = 64 * 1024;

enum class State { Ready, AtBarrier, InSimdFunction, Finished };

struct Fiber {
    ucontext_t first_entry;
    jmp_buf resume;
    bool started = false;
    State state = State::Ready;
    const void *site = nullptr;  // the call it waits in
};

class Machine {
public:
    std::string run(const Launch &launch);
    void wait(State state, const void *site);
    void complain(const std::string &what);
    void body();

    uint32_t current = 0;
    uint64_t threadgroup = 0;
    uint64_t epoch = 0;
    bool barrier_orders_memory = true;
    float exchanged[2][MAXIMUM_LANES];  // by parity of the simdgroup's generation
    uint32_t generation[MAXIMUM_LANES / SIMD_WIDTH];

private:
    void prepare(uint32_t lanes);
    void resume(uint32_t fiber);
    bool run_threadgroup();
    void run_simdgroup(uint32_t simdgroup);
    bool complete_simd_function(uint32_t simdgroup);
    bool pass_barrier();
    void abandon();

    std::vector<Fiber> fibers;
    char *stacks = nullptr;
    jmp_buf scheduler;
    const Launch *launch = nullptr;
    Position position{};
    std::vector<uint32_t> simdgroup_order;
    std::vector<uint32_t> lane_order;
    Random random{20240917};
    std::string problem;
};

Machine machine;

void fiber_main() { machine.body(); }

void Machine::complain(const std::string &what) {
    if (problem.empty()) {
        problem = what + " (threadgroup " + std::to_string(position.group[0]) + "," +
                  std::to_string(position.group[1]) + ", lane " + std::to_string(current) + ")";
    }
}

// A fiber outlives a threadgroup: it waits here for the next one.
void Machine::body() {
    for (;;) {
        Position mine = position;
        mine.index = current;
        mine.lane = current % SIMD_WIDTH;
        mine.simdgroup = current / SIMD_WIDTH;
        launch->entry(launch->buffers, mine);
        wait(State::Finished, nullptr);
    }
}

void Machine::wait(State state, const void *site) {
    Fiber &fiber = fibers[current];
    fiber.state = state;
    fiber.site = site;
    if (_setjmp(fiber.resume) == 0) {
        _longjmp(scheduler, 1);
    }
}

void Machine::resume(uint32_t index) {
    current = index;
    Fiber &fiber = fibers[index];
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fiber.started) {
        _longjmp(fiber.resume, 1);
    }
    fiber.started = true;
    setcontext(&fiber.first_entry);
}

void Machine::prepare(uint32_t lanes) {
    if (stacks == nullptr) {
        void *memory = mmap(nullptr, STACK_BYTES * MAXIMUM_LANES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            std::perror("mmap");
            std::exit(2);
        }
        stacks = static_cast<char *>(memory);
        fibers.resize(MAXIMUM_LANES);
    }
    for (uint32_t i = 0; i < lanes; i++) {
        if (fibers[i].started) {
            continue;
        }
        getcontext(&fibers[i].first_entry);
        fibers[i].first_entry.uc_stack.ss_sp = stacks + STACK_BYTES * i;
        fibers[i].first_entry.uc_stack.ss_size = STACK_BYTES;
        fibers[i].first_entry.uc_link = nullptr;
        makecontext(&fibers[i].first_entry, fiber_main, 0);
    }
}

// Fibers stuck inside a kernel cannot serve another threadgroup.
void Machine::abandon() {
    for (Fiber &fiber : fibers) {
        fiber.started = fiber.started && fiber.state == State::Finished;
    }
}

void Machine::run_simdgroup(uint32_t simdgroup) {
    for (uint32_t lane : lane_order) {
        if (fibers[simdgroup * SIMD_WIDTH + lane].state == State::Ready) {
            resume(simdgroup * SIMD_WIDTH + lane);
        }
    }
}

// Wakes a simdgroup whose lanes all wait in the same simdgroup function. False when none does.
bool Machine::complete_simd_function(uint32_t simdgroup) {
    Fiber *lanes = &fibers[simdgroup * SIMD_WIDTH];
    uint32_t waiting = 0;
    bool same_site = true;
    const void *site = nullptr;
    for (uint32_t i = 0; i < SIMD_WIDTH; i++) {
        if (lanes[i].state != State::InSimdFunction) {
            continue;
        }
        same_site = same_site && (waiting == 0 || lanes[i].site == site);
        site = lanes[i].site;
        waiting++;
    }
    if (waiting == 0) {
        return false;
    }
    if (waiting != SIMD_WIDTH || !same_site) {
        complain("divergent simdgroup function: " + std::to_string(waiting) + " of 32 lanes take part");
        return false;
    }
    for (uint32_t i = 0; i < SIMD_WIDTH; i++) {
        lanes[i].state = State::Ready;
    }
    generation[simdgroup]++;
    return true;
}

// False when the lanes disagree about the barrier.
bool Machine::pass_barrier() {
    for (uint32_t i = 0; i < launch->lanes; i++) {
        if (fibers[i].state != State::AtBarrier || fibers[i].site != fibers[0].site) {
            complain("divergent barrier: some lanes wait at it, others elsewhere or not at all");
            return false;
        }
    }
    for (uint32_t i = 0; i < launch->lanes; i++) {
        fibers[i].state = State::Ready;
    }
    epoch += barrier_orders_memory ? 1 : 0;
    return true;
}

bool Machine::run_threadgroup() {
    threadgroup++;
    epoch++;
    std::fill(std::begin(generation), std::end(generation), 0);
    for (uint32_t i = 0; i < launch->lanes; i++) {
        fibers[i].state = State::Ready;
    }
    for (;;) {
        if (launch->schedule == Schedule::Shuffled) {
            random.shuffle(simdgroup_order);
            random.shuffle(lane_order);
        }
        bool moving = true;
        while (moving) {
            moving = false;
            for (uint32_t simdgroup : simdgroup_order) {
                run_simdgroup(simdgroup);
                if (launch->schedule == Schedule::Together) {
                    continue;
                }
                while (complete_simd_function(simdgroup)) {
                    run_simdgroup(simdgroup);
                }
            }
            if (launch->schedule == Schedule::Together) {
                for (uint32_t simdgroup : simdgroup_order) {
                    moving = complete_simd_function(simdgroup) || moving;
                }
            }
        }
        const auto finished = [](const Fiber &fiber) { return fiber.state == State::Finished; };
        if (std::all_of(fibers.begin(), fibers.begin() + launch->lanes, finished)) {
            return problem.empty();
        }
        if (!problem.empty() || !pass_barrier()) {
            return false;
        }
    }
}

std::string Machine::run(const Launch &requested) {
    launch = &requested;
    problem.clear();
    prepare(launch->lanes);
    position = Position{};
    position.count = launch->lanes;
    position.simdgroups = launch->lanes / SIMD_WIDTH;
    simdgroup_order.resize(position.simdgroups);
    lane_order.resize(SIMD_WIDTH);
    std::iota(simdgroup_order.begin(), simdgroup_order.end(), 0);
    std::iota(lane_order.begin(), lane_order.end(), 0);
    if (launch->schedule == Schedule::Descending) {
        std::reverse(simdgroup_order.begin(), simdgroup_order.end());
        std::reverse(lane_order.begin(), lane_order.end());
    }
    for (position.group[1] = 0; position.group[1] < launch->groups[1]; position.group[1]++) {
        for (position.group[0] = 0; position.group[0] < launch->groups[0]; position.group[0]++) {
            if (!run_threadgroup()) {
                abandon();
                return problem;
            }
        }
    }
    return problem;
}

// Publishes the lane's value and waits for the other 31; the slots of this exchange.
const float *exchange(float value, const void *site) {
    const uint32_t simdgroup = machine.current / SIMD_WIDTH;
    float *slots = machine.exchanged[machine.generation[simdgroup] % 2];
    slots[machine.current] = value;
    machine.wait(State::InSimdFunction, site);
    return slots + simdgroup * SIMD_WIDTH;
}

template <typename Combine>
float butterfly(const float *slots, Combine combine) {
    float values[SIMD_WIDTH];
    std::memcpy(values, slots, sizeof values);
    for (uint32_t width = SIMD_WIDTH / 2; width > 0; width /= 2) {
        for (uint32_t i = 0; i < width; i++) {
            values[i] = combine(values[i], values[i + width]);
        }
    }
    return values[0];
}

}  // namespace

std::string run(const Launch &launch) { return machine.run(launch); }

void threadgroup_barrier(bool orders_threadgroup_memory) {
    machine.barrier_orders_memory = orders_threadgroup_memory;
    machine.wait(State::AtBarrier, __builtin_return_address(0));
}

float simd_sum(float value) {
    return butterfly(exchange(value, __builtin_return_address(0)), [](float a, float b) { return a + b; });
}

float simd_max(float value) {
    return butterfly(exchange(value, __builtin_return_address(0)),
                     [](float a, float b) { return __builtin_fmaxf(a, b); });
}

void CellHistory::on_read() {
    if (threadgroup != machine.threadgroup) {
        machine.complain("threadgroup memory is read before it is written");
        return;
    }
    if (write_epoch == machine.epoch && writer != machine.current) {
        machine.complain("race: a lane reads what lane " + std::to_string(writer) + " wrote without a barrier between");
    }
    several_readers = read_epoch == machine.epoch && (several_readers || reader != machine.current);
    read_epoch = machine.epoch;
    reader = machine.current;
}

void CellHistory::on_write() {
    const bool mine = threadgroup == machine.threadgroup;
    if (mine && write_epoch == machine.epoch && writer != machine.current) {
        machine.complain("race: a lane overwrites what lane " + std::to_string(writer) + " wrote without a barrier between");
    }
    if (mine && read_epoch == machine.epoch && (several_readers || reader != machine.current)) {
        machine.complain("race: a lane overwrites what another lane reads without a barrier between");
    }
    threadgroup = machine.threadgroup;
    write_epoch = machine.epoch;
    writer = machine.current;
}

}  // namespace host
