#!/bin/sh
mkdir cedar heron
