#include <pthread.h>
#include <fcntl.h>
#include <sys/file.h>
#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>
int f;
void *w(void*a){ usleep(200000); close(f); sleep(7); exit(0);}
int main(int c,char**v){ f=open(v[1],O_RDWR|O_CREAT,0666); flock(f,LOCK_EX); pthread_t t; pthread_create(&t,0,w,0); pthread_exit(NULL); }
