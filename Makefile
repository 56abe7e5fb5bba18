# flashlock: `make help` lists what there is.
# ARGS goes to the command, such as: make compare ARGS="--database mysql --seed 7"

CARGO ?= cargo
ARGS ?=
OUT ?= target/compare

.PHONY: help compare bench bench-peers test soak lab deps check

help:
	@echo 'make compare   install what is missing, build, compare the strategies on real servers'
	@echo '               (ARGS="--profile standard --database postgres --seed 7", OUT=DIR)'
	@echo 'make bench     install what is missing, build, measure against the raw servers (target/bench.json;'
	@echo '               ARGS="--check" fails on a missed target, ARGS="reserve script" is some of it)'
	@echo 'make bench-peers   measure our locks beside other libraries, which it fetches into target/peers'
	@echo '               (ARGS="--libraries redlock,rslock-5 --scenarios 1,32-one"; ARGS=render prints the last tables)'
	@echo 'make test      install what is missing, check format and lints and docs, run all tests'
	@echo 'make soak      sell for two minutes while servers and services are killed, then check every law'
	@echo '               (SOAK_S=600 is longer, SOAK_SEED=7 repeats what was injected)'
	@echo 'make lab       start real servers on free ports and print their environment; Ctrl-C ends them'
	@echo 'make deps      install redis-server, ZooKeeper, Java, PostgreSQL and MariaDB where missing'

deps:
	@bash compose/deps.sh

compare: deps
	$(CARGO) build --release --locked
	./target/release/flashlock compare --profile quick --out $(OUT) $(ARGS)

bench: deps
	$(CARGO) bench --locked --bench speed -- $(ARGS)

bench-peers: deps
	@benches/peers/fetch.sh
	$(CARGO) bench --locked --bench peers -- $(ARGS)

lab: deps
	$(CARGO) build --release --locked
	./target/release/flashlock lab up $(ARGS)

check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked

test: deps check
	$(CARGO) test --locked $(ARGS)

soak: deps
	SOAK_S=$${SOAK_S:-120} $(CARGO) test --locked --test it -- --nocapture --exact \
		soak::every_law_holds_through_kills_cuts_and_pauses
