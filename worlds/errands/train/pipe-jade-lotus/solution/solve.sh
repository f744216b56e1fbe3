#!/bin/sh
mkfifo jade lotus
