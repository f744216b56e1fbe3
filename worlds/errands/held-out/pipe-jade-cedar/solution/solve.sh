#!/bin/sh
mkfifo jade cedar
