"""Leases groups until there are no more, looks at every array and acknowledges; prints how many samples, tokens and seconds that took."""

import json
import resource
import sys
import time

from manyworlds_rl import Client

url, max_groups = sys.argv[1], int(sys.argv[2])
run = Client(url, "none").run("bench")
samples = tokens = trained = 0
begun = time.monotonic()
while True:
    lease = run.lease(max_groups=max_groups, wait_s=0)
    if not lease.groups:
        break
    for group in lease.groups:
        for sample in group.samples:
            samples += 1
            tokens += len(sample.token_ids)
            trained += sum(bytes(sample.loss_mask))
            assert len(sample.logprobs) == len(sample.versions) == len(sample.token_ids)
    run.ack(lease.lease_id, consumed=[group.group_id for group in lease.groups])
seconds = time.monotonic() - begun
print(json.dumps({"samples": samples, "tokens": tokens, "trained": trained, "seconds": seconds, "maxRssBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
