#include <pthread.h>
#include <fcntl.h>
#include <sys/file.h>
#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
char **g;
void *w(void*a){ usleep(200000); int f=open(g[1],O_RDWR|O_CREAT,0666); int r=flock(f,LOCK_EX|LOCK_NB); printf("flock %d %s\n",r,r?strerror(errno):""); fflush(stdout); exit(0);}
int main(int c,char**v){ g=v; pthread_t t; pthread_create(&t,0,w,0); pthread_exit(NULL); }
