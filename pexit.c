#include <pthread.h>
#include <fcntl.h>
#include <sys/file.h>
#include <stdio.h>
int main(int c,char**v){ int f=open(v[1],O_RDWR|O_CREAT,0666); printf("flock %d\n",flock(f,LOCK_EX)); fflush(stdout); pthread_exit(NULL); }
