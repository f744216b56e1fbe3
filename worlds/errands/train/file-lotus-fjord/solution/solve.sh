#!/bin/sh
touch lotus fjord
