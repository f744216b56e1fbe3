#!/bin/sh
touch lotus heron
