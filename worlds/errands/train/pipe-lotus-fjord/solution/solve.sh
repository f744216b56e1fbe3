#!/bin/sh
mkfifo lotus fjord
