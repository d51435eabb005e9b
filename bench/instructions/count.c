// Counts the instructions of a program that qemu emulates, by phase and by function. A program ends a phase by
// writing to its standard output: what it writes is the phase's name.
//
// The interface of qemu's plugins is declared here, since not every package of qemu brings its header.

#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t number);
extern const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *instruction);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                                  void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*call)(unsigned int, void *),
                                                 int registers, void *data);
extern void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id,
                                                 void (*call)(qemu_plugin_id_t, unsigned int, int64_t, uint64_t,
                                                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                              uint64_t, uint64_t));

EXPORT int qemu_plugin_version = PLUGIN_VERSION;

enum { WRITE = 64, WRITEV = 66, STANDARD_OUTPUT = 1 };

// Instructions of one function in this phase.
struct function {
    const char *name;
    _Atomic uint64_t instructions;
    struct function *next;
};

// A block of instructions that run one after the other.
struct block {
    struct function *function;
    uint64_t instructions;
};

enum { BUCKETS = 4096 };
static struct function *functions[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *report;
static int phase;

static struct function *function_of(const char *name) {
    if (!name) {
        name = "?";
    }
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++) {
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    }
    struct function **bucket = &functions[hash % BUCKETS];
    for (struct function *found = *bucket; found; found = found->next) {
        if (strcmp(found->name, name) == 0) {
            return found;
        }
    }
    struct function *added = calloc(1, sizeof *added);
    added->name = strdup(name);
    added->next = *bucket;
    *bucket = added;
    return added;
}

static void run(unsigned int processor, void *data) {
    struct block *block = data;
    (void)processor;
    atomic_fetch_add_explicit(&block->function->instructions, block->instructions, memory_order_relaxed);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *translation) {
    (void)id;
    struct block *block = malloc(sizeof *block);
    block->instructions = qemu_plugin_tb_n_insns(translation);
    pthread_mutex_lock(&lock);
    block->function = function_of(qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(translation, 0)));
    pthread_mutex_unlock(&lock);
    qemu_plugin_register_vcpu_tb_exec_cb(translation, run, 0, block);
}

static void end_phase(void) {
    pthread_mutex_lock(&lock);
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        for (struct function *function = functions[bucket]; function; function = function->next) {
            uint64_t instructions = atomic_exchange(&function->instructions, 0);
            if (instructions) {
                fprintf(report, "%d\t%" PRIu64 "\t%s\n", phase, instructions, function->name);
            }
        }
    }
    phase++;
    fflush(report);
    pthread_mutex_unlock(&lock);
}

static void called(qemu_plugin_id_t id, unsigned int processor, int64_t number, uint64_t file, uint64_t a2,
                   uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)processor, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if ((number == WRITE || number == WRITEV) && file == STANDARD_OUTPUT) {
        end_phase();
    }
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count, char **arguments) {
    (void)info;
    if (count != 1 || strncmp(arguments[0], "out=", 4) != 0) {
        fprintf(stderr, "out=FILE says where the counts go\n");
        return 1;
    }
    report = fopen(arguments[0] + 4, "w");
    if (!report) {
        perror(arguments[0] + 4);
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
