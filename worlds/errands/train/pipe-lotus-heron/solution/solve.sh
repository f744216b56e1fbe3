#!/bin/sh
mkfifo lotus heron
