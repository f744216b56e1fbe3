#!/bin/sh
mkfifo fjord amber
