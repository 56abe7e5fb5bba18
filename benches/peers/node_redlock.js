// node-redlock 5: one ioredis client per node and process, a loop per client. Arguments and output are
// those of every driver (worker.rs); before them stands where the modules are.

const { createRequire } = require("node:module");
const readline = require("node:readline");

const MS = 1_000_000n;
const TTL_MS = 10_000;

const [modules, ...words] = process.argv.slice(2);
const load = createRequire(modules + "/");
const Redis = load("ioredis");
const Redlock = load("redlock").default;

const args = {};
for (let i = 0; i + 1 < words.length; i += 2) args[words[i].slice(2)] = words[i + 1];

const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let failed = 0;
let failure = null;
const fail = (why) => {
  failed += 1;
  failure ??= String(why);
};

async function work(redlock, key, client, times) {
  await sleep(Number((times.start - now()) / MS));
  while (now() < times.to) {
    let lock;
    try {
      lock = await redlock.acquire([key], TTL_MS);
    } catch (error) {
      // Its retries are used up: asked again until the end.
      fail(error);
      continue;
    }
    const acquired = now();
    if (acquired < times.probeUntil) await sleep(1);
    const released = now();
    try {
      await lock.release();
    } catch (error) {
      fail(error);
    }
    const done = now();
    if (done >= times.from && done < times.to) client.count += 1;
    client.holds.push([Number(acquired - times.start), Number(released - times.start)]);
  }
}

async function main() {
  const nodes = args.urls.split(",").map((url) => new Redis(url));
  await Promise.all(nodes.map((node) => node.ping()));
  const redlock = new Redlock(nodes, { retryDelay: 5 });
  redlock.on("error", () => {}); // contention is told as errors too
  console.log(JSON.stringify({ version: require(modules + "/redlock/package.json").version.replace(/^v/, "") }));

  const lines = readline.createInterface({ input: process.stdin });
  // Whoever started it is gone; the connections would keep it alive.
  lines.once("close", () => process.exit(1));
  const start = BigInt(await new Promise((resolve) => lines.once("line", resolve)));
  const warm = BigInt(args["warm-ms"]) * MS;
  const from = start + warm;
  const times = { start, probeUntil: start + warm / 2n, from, to: from + BigInt(args["run-ms"]) * MS };
  const clients = [];
  const running = [];
  for (let n = 0; n < Number(args.clients); n += 1) {
    const client = { count: 0, holds: [] };
    clients.push(client);
    running.push(work(redlock, args.keys === "one" ? args.key : `${args.key}-${n}`, client, times));
  }
  const patience = Number((times.to - now()) / MS) + 1000;
  await Promise.race([Promise.all(running), sleep(patience)]);
  const report = {
    counts: clients.map((client) => client.count),
    failed,
    failure,
    holds: clients.flatMap((client, n) => client.holds.flatMap((hold) => [n, ...hold])),
  };
  process.stdout.write(JSON.stringify(report) + "\n", () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
