#!/bin/sh
touch cedar heron
