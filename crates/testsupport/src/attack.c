/* Shows a file; declares terabytes of memory as its command line; runs a command outside of its chroot; or takes as much as the kernel lets one user have of
   several things, or one of each, and says how many. It holds all until it is killed. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/prctl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int inotify(int number)
{
    (void)number;
    return inotify_init();
}

static int queue(int number)
{
    char name[64];
    snprintf(name, sizeof name, "/taken-%d-%d", (int)getpid(), number);
    return mq_open(name, O_CREAT | O_RDWR, 0600, NULL);
}

static int pending(int number)
{
    union sigval value = {.sival_int = number};
    return sigqueue(getpid(), SIGRTMIN, value);
}

static void take(const char *name, int (*one)(int), int most)
{
    int taken = 0;
    while (taken < most && one(taken) >= 0)
        taken++;
    printf("@ %s %d\n", name, taken);
}

static int show(const char *path)
{
    char text[64] = "";
    int file = open(path, O_RDONLY);
    printf("shown <%.*s>\n", (int)read(file, text, sizeof text), text);
    return 0;
}

static int endless(void)
{
    extern char __executable_start, etext, edata;
    size_t size = (size_t)1 << 45;
    void *zeros = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t start = (uint64_t)zeros, end = start + size, data = (uint64_t)&edata, heap = (uint64_t)sbrk(0);
    struct prctl_mm_map map = {
        .start_code = (uint64_t)&__executable_start, .end_code = (uint64_t)&etext,
        .start_data = data - 1, .end_data = data, .start_brk = heap, .brk = heap,
        .start_stack = (uint64_t)&size, .arg_start = start, .arg_end = end,
        .env_start = end, .env_end = end, .exe_fd = -1,
    };
    if (zeros == MAP_FAILED || prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0)) {
        perror("endless");
        return 1;
    }
    puts("endless");
    fflush(stdout);
    return pause();
}

static int outside(const char *command)
{
    int root = open("/", O_RDONLY | O_DIRECTORY);
    if (mkdir("/inner", 0755) || chroot("/inner") || fchdir(root)) {
        perror("outside");
        return 1;
    }
    for (int level = 0; level < 64; level++)
        if (chdir(".."))
            return 1;
    if (chroot("."))
        return 1;
    execl("/bin/sh", "sh", "-ec", command, (char *)NULL);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "outside") == 0)
        return outside(argv[2]);
    if (argc > 1 && strcmp(argv[1], "endless") == 0)
        return endless();
    if (argc > 2 && strcmp(argv[1], "show") == 0)
        return show(argv[2]);
    int most = argc > 1 && strcmp(argv[1], "one") == 0 ? 1 : 1 << 20;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    take("inotify", inotify, most);
    take("queue", queue, most);
    take("pending", pending, most);
    puts("taken");
    fflush(stdout);
    return most == 1 ? 0 : pause();
}
