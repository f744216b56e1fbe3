#!/bin/sh
touch heron jade
