/* The machine, the job, the token, the last error, and what tests set of them. */
#include "kernel32.h"

#include <string.h>

#define ENABLED 2
#define LOCK_MEMORY_LUID 4

typedef struct {
    WORD architecture, reserved;
    DWORD os_page;
    ADDRESS lowest, highest;
    SIZE_T active_processors;
    DWORD processors, processor_type, granularity;
    WORD level, revision;
} SystemInformation;

typedef struct {
    DWORD nbytes, load;
    uint64_t total, available, commit_limit, commit_left, rest[3];
} MemoryStatus;

typedef struct {
    DWORD nbytes, faults;
    SIZE_T rest[6], commit, peak_commit;
} ProcessMemory;

typedef struct {
    uint64_t times[2];
    DWORD flags;
    SIZE_T working_sets[2];
    DWORD processes;
    SIZE_T affinity;
    DWORD classes[2];
    uint64_t io[6];
    SIZE_T process_limit, job_limit, peaks[2];
} JobLimits;

typedef struct {
    uint64_t used, peak;
} JobUsage;

typedef struct {
    DWORD count, luid[2], attributes;
} Privileges;

enum { JOB_LIMITS = 9, JOB_USAGE = 28, PROCESS_LIMIT = 0x100, JOB_LIMIT = 0x200 };
enum { A_TOKEN = 0x70, A_PROCESS = -1 };

static const struct {
    DWORD code;
    const char *text;
} texts[] = {
    {ERROR_ACCESS_DENIED, "Access is denied. "},
    {ERROR_INVALID_HANDLE, "The handle is invalid. "},
    {ERROR_NOT_ENOUGH_MEMORY,
     "Not enough memory resources are available to process this command. "},
    {ERROR_INVALID_PARAMETER, "The parameter is incorrect. "},
    {ERROR_INVALID_ADDRESS, "Attempt to access invalid address. "},
    {ERROR_NOT_ALL_ASSIGNED,
     "Not all privileges or groups referenced are assigned to the caller. "},
    {ERROR_PRIVILEGE_NOT_HELD, "A required privilege is not held by the client. "},
    {ERROR_COMMITMENT_LIMIT,
     "The paging file is too small for this operation to complete. "},
};

SIZE_T emu_commit_limit, emu_committed;
BOOL emu_is_lock_memory_enabled;

static __thread DWORD last_error;
static SIZE_T memory_nbytes, process_limit, job_limit, other_job_use;
static BOOL has_lock_memory, has_open_token;
static DWORD call_count, failing_call, failing_code;
static BOOL is_failure_lasting;

int emu_fail(DWORD code)
{
    last_error = code;
    return 0;
}

BOOL emu_is_failing(void)
{
    call_count++;
    if (!failing_code || call_count < failing_call)
        return 0;
    if (call_count > failing_call && !is_failure_lasting)
        return 0;
    emu_fail(failing_code);
    return 1;
}

EXPORTED void EmuReset(void)
{
    emu_lock();
    emu_drop_all();
    emu_unlock();
    memory_nbytes = (SIZE_T)16 << 30;
    emu_commit_limit = (SIZE_T)24 << 30;
    emu_committed = process_limit = job_limit = other_job_use = 0;
    emu_is_lock_memory_enabled = has_lock_memory = has_open_token = 0;
    call_count = failing_code = 0;
}

EXPORTED void EmuSetMemory(SIZE_T nbytes, SIZE_T commit_limit)
{
    memory_nbytes = nbytes;
    emu_commit_limit = commit_limit;
}

EXPORTED void EmuGrantLockMemory(void) { has_lock_memory = 1; }

/* A job with limits, 0 for none, and what its other processes have committed. */
EXPORTED void EmuSetJob(SIZE_T of_process, SIZE_T of_job, SIZE_T use_of_others)
{
    process_limit = of_process;
    job_limit = of_job;
    other_job_use = use_of_others;
}

/* Let the call-th VirtualAlloc or VirtualFree from now fail; 0 as code for none. */
EXPORTED void EmuFail(DWORD call, DWORD code, BOOL is_lasting)
{
    failing_call = call_count + call;
    failing_code = code;
    is_failure_lasting = is_lasting;
}

EXPORTED DWORD EmuCallCount(void) { return call_count; }

EXPORTED SIZE_T EmuCommitted(void) { return emu_committed; }

EXPORTED BOOL EmuHasOpenToken(void) { return has_open_token; }

EXPORTED SIZE_T EmuRegionCount(void)
{
    emu_lock();
    SIZE_T count = emu_region_count();
    emu_unlock();
    return count;
}

EXPORTED DWORD GetLastError(void) { return last_error; }

EXPORTED void SetLastError(DWORD code) { last_error = code; }

EXPORTED ADDRESS GetCurrentProcess(void) { return (ADDRESS)A_PROCESS; }

EXPORTED SIZE_T GetLargePageMinimum(void) { return LARGE_PAGE; }

EXPORTED BOOL GetNumaHighestNodeNumber(DWORD *answer)
{
    *answer = HIGHEST_NODE;
    return 1;
}

EXPORTED void GetSystemInfo(SystemInformation *answer)
{
    memset(answer, 0, sizeof *answer);
    answer->architecture = 9;
    answer->os_page = OS_PAGE;
    answer->lowest = LOWEST;
    answer->highest = HIGHEST;
    answer->processors = answer->active_processors = 1;
    answer->granularity = GRANULARITY;
}

EXPORTED BOOL GlobalMemoryStatusEx(MemoryStatus *answer)
{
    if (answer->nbytes != sizeof *answer)
        return emu_fail(ERROR_INVALID_PARAMETER);
    answer->total = memory_nbytes;
    answer->available = memory_nbytes - memory_nbytes / 4;
    answer->commit_limit = emu_commit_limit;
    answer->commit_left = emu_commit_limit - emu_committed;
    return 1;
}

EXPORTED BOOL
K32GetProcessMemoryInfo(ADDRESS process, ProcessMemory *answer, DWORD nbytes)
{
    if (process != (ADDRESS)A_PROCESS)
        return emu_fail(ERROR_INVALID_HANDLE);
    if (nbytes < sizeof *answer)
        return emu_fail(ERROR_BAD_LENGTH);
    memset(answer, 0, sizeof *answer);
    answer->commit = emu_committed;
    return 1;
}

EXPORTED BOOL QueryInformationJobObject(
    ADDRESS job, int question, void *answer, DWORD nbytes, DWORD *written)
{
    if (job || (!process_limit && !job_limit))
        return emu_fail(job ? ERROR_INVALID_HANDLE : ERROR_ACCESS_DENIED);
    if (written)
        *written = nbytes;
    if (question == JOB_LIMITS && nbytes == sizeof(JobLimits)) {
        JobLimits limits = {0};
        limits.process_limit = process_limit;
        limits.job_limit = job_limit;
        limits.flags =
            (process_limit ? PROCESS_LIMIT : 0) | (job_limit ? JOB_LIMIT : 0);
        memcpy(answer, &limits, sizeof limits);
        return 1;
    }
    if (question == JOB_USAGE && nbytes == sizeof(JobUsage)) {
        JobUsage usage = {emu_committed + other_job_use, 0};
        memcpy(answer, &usage, sizeof usage);
        return 1;
    }
    return emu_fail(question == JOB_LIMITS || question == JOB_USAGE
                        ? ERROR_BAD_LENGTH
                        : ERROR_INVALID_PARAMETER);
}

EXPORTED BOOL OpenProcessToken(ADDRESS process, DWORD access, ADDRESS *token)
{
    (void)access;
    if (process != (ADDRESS)A_PROCESS)
        return emu_fail(ERROR_INVALID_HANDLE);
    has_open_token = 1;
    *token = A_TOKEN;
    return 1;
}

EXPORTED BOOL CloseHandle(ADDRESS handle)
{
    if (handle != A_TOKEN || !has_open_token)
        return emu_fail(ERROR_INVALID_HANDLE);
    has_open_token = 0;
    return 1;
}

EXPORTED BOOL LookupPrivilegeValueW(const WORD *system, const WORD *name, DWORD *luid)
{
    static const char known[] = "SeLockMemoryPrivilege";
    (void)system;
    for (SIZE_T index = 0; index < sizeof known; index++)
        if (name[index] != (WORD)known[index])
            return emu_fail(ERROR_NO_SUCH_PRIVILEGE);
    luid[0] = LOCK_MEMORY_LUID;
    luid[1] = 0;
    return 1;
}

/* As Windows has it: success, and the last error says whether all were assigned. */
EXPORTED BOOL AdjustTokenPrivileges(
    ADDRESS token, BOOL disable_all, const Privileges *wanted, DWORD nbytes,
    void *before, DWORD *before_nbytes)
{
    (void)disable_all, (void)nbytes, (void)before, (void)before_nbytes;
    if (token != A_TOKEN || !has_open_token)
        return emu_fail(ERROR_INVALID_HANDLE);
    BOOL is_it = wanted->count == 1 && wanted->luid[0] == LOCK_MEMORY_LUID;
    BOOL is_granted = is_it && has_lock_memory && wanted->attributes == ENABLED;
    emu_is_lock_memory_enabled = is_granted;
    last_error = is_granted ? ERROR_SUCCESS : ERROR_NOT_ALL_ASSIGNED;
    return 1;
}

EXPORTED DWORD FormatMessageW(
    DWORD flags, const void *source, DWORD code, DWORD language, WORD *buffer,
    DWORD characters, void *arguments)
{
    (void)flags, (void)source, (void)language, (void)arguments;
    for (SIZE_T index = 0; index < sizeof texts / sizeof *texts; index++) {
        if (texts[index].code != code)
            continue;
        DWORD length = (DWORD)strlen(texts[index].text);
        for (DWORD at = 0; at <= length && at < characters; at++)
            buffer[at] = (WORD)texts[index].text[at];
        return length;
    }
    return (DWORD)emu_fail(ERROR_INVALID_PARAMETER);
}
