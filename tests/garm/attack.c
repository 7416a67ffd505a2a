/* Shows a file; or takes as much as the kernel lets one user have of several things, or one of each, and says how
   many. It holds all until it is killed. */

#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
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

int main(int argc, char **argv)
{
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
