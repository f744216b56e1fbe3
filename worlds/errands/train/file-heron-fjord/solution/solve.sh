#!/bin/sh
touch heron fjord
