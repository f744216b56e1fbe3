#!/bin/sh
mkdir cedar lotus
