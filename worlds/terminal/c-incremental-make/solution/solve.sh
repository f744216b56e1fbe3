#!/bin/bash
set -euo pipefail
cat > /app/Makefile <<'MK'
BUILD ?= build
CFLAGS ?= -O2 -Wall
PREFIX ?= /usr/local

gen := $(BUILD)/gen
objects := $(BUILD)/main.o $(BUILD)/lookup.o $(BUILD)/codes.o
compile = $(CC) $(CPPFLAGS) $(CFLAGS) -Isrc -I$(gen) -I$(gen)/lib -MMD -MP -c -o $@ $<

.DELETE_ON_ERROR:

all: $(BUILD)/codes

$(BUILD)/codes: $(objects)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(objects)

# The generated headers must be there before the first compilation; later the compiler's own list decides.
$(BUILD)/main.o: src/main.c $(BUILD)/flags | $(gen)/lib/codes.h $(gen)/version.h
	$(compile)

$(BUILD)/lookup.o: src/lib/lookup.c $(BUILD)/flags | $(gen)/lib/codes.h
	$(compile)

$(BUILD)/codes.o: $(gen)/lib/codes.c $(BUILD)/flags
	$(compile)

# One run makes both files: a grouped target.
$(gen)/lib/codes.h $(gen)/lib/codes.c &: codes.txt tools/gen-codes.sh
	@mkdir -p $(gen)/lib
	rm -f $(gen)/lib/codes.h $(gen)/lib/codes.c
	tools/gen-codes.sh codes.txt $(gen)/lib || { rm -f $(gen)/lib/codes.h $(gen)/lib/codes.c; exit 1; }

$(gen)/version.h: VERSION
	@mkdir -p $(gen)
	printf '#define VERSION "%s"\n' "$$(cat VERSION)" > $@

# Written only when the flags differ from those of the last time.
flags := $(CC) $(CPPFLAGS) $(CFLAGS)
ifneq ($(flags),$(file < $(BUILD)/flags))
$(BUILD)/flags: force
	@mkdir -p $(BUILD)
	@printf '%s\n' '$(subst ','\'',$(flags))' > $@
endif

install: $(BUILD)/codes
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(BUILD)/codes $(DESTDIR)$(PREFIX)/bin/codes

clean:
	rm -rf $(BUILD)

force:

.PHONY: all install clean force

-include $(objects:.o=.d)
MK
cd /app && make
