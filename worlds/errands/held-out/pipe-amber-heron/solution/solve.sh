#!/bin/sh
mkfifo amber heron
