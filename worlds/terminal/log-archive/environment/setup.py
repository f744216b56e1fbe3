import os, random
rng = random.Random(3)
now = 1_717_200_000
for service in ("web", "db", "mail queue"):
    os.makedirs(f"/app/logs/{service}")
    for age in (0, 1, 3, 6, 7, 8, 20, 29, 30, 31, 90):
        path = f"/app/logs/{service}/{service}-{age}.log"
        with open(path, "w") as file:
            file.write("".join(f"{rng.getrandbits(64):x}\n" for _ in range(rng.randrange(200))))
        os.utime(path, (now - age * 86400, now - age * 86400))
