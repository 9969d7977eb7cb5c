/* What the parts of the kernel32 emulation share.
 *
 * A test double for Linux of the functions of Windows that madl calls, strict where
 * Windows is: what Windows refuses fails here, with the code that Windows gives. The
 * memory is real. Functions whose names start with Emu are for tests only. */
#ifndef EMULATED_KERNEL32_H
#define EMULATED_KERNEL32_H

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

typedef uint32_t DWORD;
typedef uint16_t WORD;
typedef int BOOL;
typedef size_t SIZE_T;
typedef uintptr_t ADDRESS;

enum {
    MEM_COMMIT = 0x1000,
    MEM_RESERVE = 0x2000,
    MEM_DECOMMIT = 0x4000,
    MEM_RELEASE = 0x8000,
    MEM_FREE = 0x10000,
    MEM_TOP_DOWN = 0x100000,
    MEM_LARGE_PAGES = 0x20000000,
    MEM_RESERVE_PLACEHOLDER = 0x40000,
    MEM_REPLACE_PLACEHOLDER = 0x4000,
    MEM_COALESCE_PLACEHOLDERS = 1,
    MEM_PRESERVE_PLACEHOLDER = 2,
};

enum {
    PAGE_NOACCESS = 1,
    PAGE_READONLY = 2,
    PAGE_READWRITE = 4,
    PAGE_WRITECOPY = 8,
    PAGE_EXECUTE_WRITECOPY = 0x80,
    PAGE_GUARD = 0x100,
};

enum {
    ERROR_SUCCESS = 0,
    ERROR_ACCESS_DENIED = 5,
    ERROR_INVALID_HANDLE = 6,
    ERROR_NOT_ENOUGH_MEMORY = 8,
    ERROR_BAD_LENGTH = 24,
    ERROR_INVALID_PARAMETER = 87,
    ERROR_INVALID_ADDRESS = 487,
    ERROR_NOT_ALL_ASSIGNED = 1300,
    ERROR_NO_SUCH_PRIVILEGE = 1313,
    ERROR_PRIVILEGE_NOT_HELD = 1314,
    ERROR_COMMITMENT_LIMIT = 1455,
};

#define ANY_NODE ((DWORD)-1)
#define OS_PAGE ((SIZE_T)4096)
#define GRANULARITY ((SIZE_T)65536)
#define HIGHEST_NODE 1
#define LARGE_PAGE ((SIZE_T)2 << 20)
#define LOWEST ((ADDRESS)0x10000)
#define HIGHEST ((ADDRESS)0x7FFFFFFEFFFF)

/* What VirtualAlloc reserved in one call, or a piece of a placeholder. */
typedef struct Region {
    ADDRESS base;
    SIZE_T nbytes;
    DWORD first_protection;
    BOOL is_placeholder;
    BOOL is_large;
    uint8_t *protection; /* of each OS page; 0 is reserved only */
    SIZE_T committed;    /* OS pages */
    DWORD node;          /* that memory is preferred of; ANY_NODE */
    struct Region *next; /* sorted by base */
} Region;

/* State of the machine, changed by tests; kernel32_system.c. */
extern SIZE_T emu_commit_limit, emu_committed;
extern BOOL emu_is_lock_memory_enabled;

/* Fail with a code: 0, which is FALSE and a null pointer. */
int emu_fail(DWORD code);
/* Count a call; whether a test wants it to fail. The code is set then. */
BOOL emu_is_failing(void);

/* kernel32_regions.c; the lock is held. */
SIZE_T emu_round_up(SIZE_T nbytes, SIZE_T multiple);
Region *emu_find(ADDRESS address);
Region *emu_reserve(ADDRESS at, SIZE_T nbytes, SIZE_T alignment, DWORD protection);
void emu_drop(Region *region);
BOOL emu_commit(Region *region, ADDRESS from, ADDRESS end, DWORD protection);
BOOL emu_decommit(Region *region, ADDRESS from, ADDRESS end);
Region *emu_cut(Region *region, ADDRESS at);
void emu_join(Region *region, ADDRESS end);
SIZE_T emu_region_count(void);
void emu_drop_all(void);
void emu_lock(void);
void emu_unlock(void);

#endif
