#!/bin/sh
mkdir amber heron
