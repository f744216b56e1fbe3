#!/bin/sh
mkdir jade cedar
