#!/bin/sh
touch jade amber
