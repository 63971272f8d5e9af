#include <dirent.h>
#include <stdio.h>
#include <errno.h>
int main(void){ DIR *volatile d=NULL; int r=closedir(d); printf("closedir(NULL)=%d errno=%d\n",r,errno); }
