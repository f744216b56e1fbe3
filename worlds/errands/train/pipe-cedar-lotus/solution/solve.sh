#!/bin/sh
mkfifo cedar lotus
