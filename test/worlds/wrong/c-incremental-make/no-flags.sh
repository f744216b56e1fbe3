# Does not notice other flags.
reference
cd /app && sed -i 's/^ifneq.*/ifeq (1,2)/; s# $(BUILD)/flags##' Makefile && make
