#!/bin/sh
mkfifo heron fjord
