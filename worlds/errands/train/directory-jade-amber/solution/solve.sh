#!/bin/sh
mkdir jade amber
