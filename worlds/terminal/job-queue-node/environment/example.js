"use strict";
const { JobQueue } = require("./queue.js");

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main() {
  const queue = new JobQueue({ concurrency: 2 });
  for (const name of ["a", "b", "c", "d"]) {
    queue.add(async () => {
      console.log("start", name);
      await sleep(10);
      console.log("end", name);
    });
  }
  await queue.onIdle();
  console.log("idle");
}

main();
