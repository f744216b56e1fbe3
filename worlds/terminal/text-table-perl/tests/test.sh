#!/bin/bash
# Starts the grader with nothing inherited: no environment, no site directories, no module from the working directory.
cd / || exit 1
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/nonexistent /usr/bin/python3 -I -S -B /tests/grade.py
