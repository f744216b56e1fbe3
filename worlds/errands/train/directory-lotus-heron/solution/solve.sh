#!/bin/sh
mkdir lotus heron
