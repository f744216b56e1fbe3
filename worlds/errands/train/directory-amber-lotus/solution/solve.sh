#!/bin/sh
mkdir amber lotus
