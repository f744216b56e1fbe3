#!/bin/sh
mkfifo fjord jade
