#!/bin/sh
mkfifo fjord cedar
