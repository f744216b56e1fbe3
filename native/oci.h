/* A container runtime's helper: see oci.c. */
#ifndef MW_OCI_H
#define MW_OCI_H

#include <stdint.h>

__attribute__((noreturn)) void fail(const char *what, const char *path);
void end_with_parent(void);

/* oci-forward.c */
void network_make(void);
void service_listen(const char *port, const char *target);
void services_forward(const char *name, char **program);

#endif
