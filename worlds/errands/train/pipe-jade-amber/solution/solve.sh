#!/bin/sh
mkfifo jade amber
