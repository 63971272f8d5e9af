# netflock: the build. `make` builds, `make test` tests, `make demo` shows it; `make help` lists all targets.

VERSION := 0.1.0

CC ?= cc
BUILD ?= build
OPT ?= -O2 -g
CFLAGS ?=
LDFLAGS ?=
WARN = -Wall -Wextra -Wshadow -Wconversion -Wmissing-prototypes
ALL_CFLAGS = -std=gnu11 $(WARN) $(OPT) -fPIC -fvisibility=hidden -fno-semantic-interposition -pthread \
	-D_GNU_SOURCE -DNF_VERSION='"$(VERSION)"' -Ishim -Iinclude -I$(BUILD)/gen $(CFLAGS)

# libhiredis and libbsd go in as archives: the host may carry others of its own, and needs none. hiredis is made to
# allocate from our own heap (shim/base/alloc.h).
HIREDIS = $(BUILD)/gen/libhiredis.a
STATIC_LIBS = $(HIREDIS) -Wl,--push-state,-Bstatic -lbsd -lmd -Wl,--pop-state

BASE := $(wildcard shim/base/*.c)
REDIS := $(wildcard shim/redis/*.c)
LEASE := $(wildcard shim/lease/*.c)
LOCK := $(wildcard shim/lock/*.c)
EXPORT := $(wildcard shim/export/*.c)
KEEPER := $(wildcard shim/keeper/*.c)
CLI := $(wildcard shim/cli/*.c)
LUA := $(addprefix shim/redis/,acquire.lua release.lua renew.lua look.lua range_set.lua range_test.lua range_sync.lua \
	range_renew.lua range_list.lua)

SHIM_SRC := $(BASE) $(REDIS) $(LEASE) $(LOCK) $(EXPORT)
KEEPER_SRC := $(BASE) $(REDIS) shim/lease/proto.c $(KEEPER)
CLI_SRC := $(BASE) $(REDIS) $(CLI)

# V=1 shows the commands.
CORES := $(shell nproc 2>/dev/null || echo 2)
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $(2))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

.PHONY: all help demo test check bench soak lint format-check install uninstall packages packages-demo packages-lint clean
all: $(BUILD)/libnetflock.so $(BUILD)/netflock-keeper $(BUILD)/netflock
	@:

help:
	@echo "make            build libnetflock.so, netflock-keeper and netflock in $(BUILD)/"
	@echo "make demo       install what is missing, build, and show two hosts on one lock"
	@echo "make test       install what is missing, build, and run every test, also under sanitizers"
	@echo "                [SUITE=name TEST=part of a name] [PASS=\"plain asan tsan\"] [V=1]"
	@echo "make check      the unit tests and lint: what can be said without a server"
	@echo "make soak       four minutes of everything at random on three hosts, and a checker [SEED=n STEPS=n]"
	@echo "make bench      print the benchmark's table"
	@echo "make lint       clang-format, cppcheck, clang-tidy"
	@echo "make install    install below DESTDIR and PREFIX (default /usr/local); make uninstall undoes it"

# As root these install what Debian packages are missing; otherwise they say which.
packages-demo:
	@sh tests/install-packages tests/packages-demo.txt
packages-lint:
	@sh tests/install-packages tests/packages-lint.txt
packages:
	@sh tests/install-packages tests/packages.txt

demo: packages-demo
	@$(MAKE) --no-print-directory all
	@bash tests/demo.sh

# What the passes under sanitizers are built with, each in a folder of its own below BUILD.
OPT_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -DNF_ASSERT_LOCKS
OPT_tsan := -O1 -g -fsanitize=thread -DNF_ASSERT_LOCKS
opt-%:
	@echo '$(OPT_$*)'
built-%:
	@$(MAKE) --no-print-directory -j$(CORES) BUILD=$(BUILD)/$* OPT="$(OPT_$*)" all
	@[ $* != tsan ] || $(MAKE) --no-print-directory -C tests BUILD=$(abspath $(BUILD))/tsan CFLAGS="-O1 -g -fsanitize=thread" $(abspath $(BUILD))/tsan/tests/races

# SUITE=queue, and TEST=a part of a test's name: just those. PASS="plain asan": just those passes. V=1: a line for each test.
PASS ?= plain asan tsan
test: packages
	@$(MAKE) --no-print-directory -j$(CORES) all
	@for p in $(filter-out plain,$(PASS)); do $(MAKE) --no-print-directory built-$$p || exit 1; done
	@tests/run $(if $(V),-v) $(PASS) $(if $(SUITE),$(SUITE)$(if $(TEST),:$(TEST)))

# Quick: what can be said without a server.
check: packages-lint
	@$(MAKE) --no-print-directory -j$(CORES) all
	@tests/unit/run
	@sh tests/lint

bench: packages
	@$(MAKE) --no-print-directory all
	@bash tests/bench/run

soak: packages
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory -C tests BUILD=$(abspath $(BUILD))
	@/usr/bin/python3 tests/soak/soak.py --seconds 120 $(if $(SEED),--seed $(SEED)) --build $(abspath $(BUILD))
	@/usr/bin/python3 tests/model/model.py --steps $(or $(STEPS),10000) $(if $(SEED),--seed $(SEED)) --build $(abspath $(BUILD))

lint: packages-lint
	@sh tests/lint

$(BUILD)/gen/scripts.inc: $(wildcard shim/redis/*.lua) shim/redis/lua2c.sh
	@mkdir -p $(@D)
	$(Q)sh shim/redis/lua2c.sh $(LUA) >$@.tmp && mv $@.tmp $@

$(HIREDIS): Makefile
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym malloc=nf_malloc --redefine-sym calloc=nf_calloc --redefine-sym realloc=nf_realloc \
		--redefine-sym strdup=nf_strdup --redefine-sym free=nf_free \
		"$$($(CC) -print-file-name=libhiredis.a)" $@

$(BUILD)/gen/exports.map: shim/export/symbols
	@mkdir -p $(@D)
	$(Q){ echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };'; } >$@

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(call obj,shim/redis/script.c): $(BUILD)/gen/scripts.inc

$(BUILD)/libnetflock.so: $(call obj,$(SHIM_SRC)) $(BUILD)/gen/exports.map $(HIREDIS)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -pthread $(OPT) -o $@ $(call obj,$(SHIM_SRC)) $(LDFLAGS) $(CFLAGS) -Wl,--version-script=$(BUILD)/gen/exports.map \
		-Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,-soname,libnetflock.so \
		-Wl,--as-needed $(STATIC_LIBS)

$(BUILD)/netflock-keeper: $(call obj,$(KEEPER_SRC)) $(HIREDIS)
	$(call say,LINK,$@)
	$(Q)$(CC) -pthread $(OPT) -o $@ $(call obj,$(KEEPER_SRC)) $(LDFLAGS) $(CFLAGS) -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,--as-needed $(STATIC_LIBS)

$(BUILD)/netflock: $(call obj,$(CLI_SRC)) $(HIREDIS)
	$(call say,LINK,$@)
	$(Q)$(CC) -pthread $(OPT) -o $@ $(call obj,$(CLI_SRC)) $(LDFLAGS) $(CFLAGS) -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,--as-needed $(STATIC_LIBS)

# One folder below lib holds library and keeper, which finds itself beside the library.
PREFIX ?= /usr/local
LIBDIR = $(DESTDIR)$(PREFIX)/lib/netflock
COMPLETIONS = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
install: all
	install -d $(LIBDIR) $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/man/man1 \
		$(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man7 $(COMPLETIONS)
	install -m 755 $(BUILD)/libnetflock.so $(BUILD)/netflock-keeper $(LIBDIR)/
	install -m 755 $(BUILD)/netflock $(DESTDIR)$(PREFIX)/bin/
	install -m 644 docs/completions/netflock.bash $(COMPLETIONS)/netflock
	install -m 644 include/netflock.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 docs/netflock.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 docs/netflock.conf.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	install -m 644 docs/netflock.7 $(DESTDIR)$(PREFIX)/share/man/man7/

uninstall:
	rm -f $(COMPLETIONS)/netflock $(LIBDIR)/libnetflock.so $(LIBDIR)/netflock-keeper $(DESTDIR)$(PREFIX)/bin/netflock $(DESTDIR)$(PREFIX)/include/netflock.h \
		$(DESTDIR)$(PREFIX)/share/man/man1/netflock.1 $(DESTDIR)$(PREFIX)/share/man/man5/netflock.conf.5 \
		$(DESTDIR)$(PREFIX)/share/man/man7/netflock.7
	-rmdir $(LIBDIR)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
