#!/bin/sh
mkfifo heron jade
