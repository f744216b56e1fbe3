#!/bin/sh
mkfifo amber lotus
