/* Hides instruction sets from the libraries of a process, for comparisons at one level. Preloaded, it lets CPUID trap and
   answers in its place. BENCH_LEVEL names the level: avx2, avxvnni, avx512 or avx512vnni. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define BIT(n) (UINT32_C(1) << (n))

enum { FEATURES = 7 };

/* Of leaf 7: AVX-512 (F, DQ, IFMA, PF, ER, CD, BW, VL). */
static const uint32_t wide_ebx = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
/* VBMI, VBMI2, BITALG, VPOPCNTDQ. */
static const uint32_t wide_ecx = BIT(1) | BIT(6) | BIT(12) | BIT(14);
static const uint32_t wide_vnni_ecx = BIT(11);
/* 4VNNIW, 4FMAPS, VP2INTERSECT. */
static const uint32_t wide_edx = BIT(2) | BIT(3) | BIT(8);
/* AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8. */
static const uint32_t newest_edx = BIT(22) | BIT(23) | BIT(24) | BIT(25);
/* Of its second part: AVX-VNNI; AVX512-BF16; AMX-FP16 and AVX-IFMA. */
static const uint32_t vnni_eax = BIT(4);
static const uint32_t newest_eax = BIT(5) | BIT(21) | BIT(23);

static int hides_wide, hides_wide_vnni, hides_vnni;

static void mask(uint32_t leaf, uint32_t part, uint32_t r[4]) {
  if (leaf != FEATURES) return;
  if (part == 0) {
    r[3] &= ~newest_edx;
    if (hides_wide_vnni) r[2] &= ~wide_vnni_ecx;
    if (hides_wide) {
      r[1] &= ~wide_ebx;
      r[2] &= ~wide_ecx;
      r[3] &= ~wide_edx;
    }
  } else if (part == 1) {
    r[0] &= ~newest_eax;
    if (hides_vnni) r[0] &= ~vnni_eax;
  }
}

static void answer(int signal_number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *at = (const unsigned char *)registers[REG_RIP];
  if (at[0] != 0x0f || at[1] != 0xa2) {
    signal(signal_number, SIG_DFL);
    return;
  }
  uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX], r[4];
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
  __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]);
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
  mask(leaf, part, r);
  registers[REG_RAX] = r[0];
  registers[REG_RBX] = r[1];
  registers[REG_RCX] = r[2];
  registers[REG_RDX] = r[3];
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
  const char *level = getenv("BENCH_LEVEL");
  if (!level) return;
  hides_wide = strcmp(level, "avx2") == 0 || strcmp(level, "avxvnni") == 0;
  hides_wide_vnni = strcmp(level, "avx512vnni") != 0;
  hides_vnni = strcmp(level, "avxvnni") != 0;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, NULL);
  if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) != 0) {
    static const char words[] = "this processor can't hide instruction sets\n";
    (void)!write(2, words, sizeof words - 1);
    _exit(1);
  }
}
