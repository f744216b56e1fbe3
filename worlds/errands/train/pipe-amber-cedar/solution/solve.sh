#!/bin/sh
mkfifo amber cedar
