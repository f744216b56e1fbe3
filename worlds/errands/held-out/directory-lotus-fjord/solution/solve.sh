#!/bin/sh
mkdir lotus fjord
