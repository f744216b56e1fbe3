#!/bin/sh
mkfifo cedar heron
