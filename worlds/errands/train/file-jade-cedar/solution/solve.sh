#!/bin/sh
touch jade cedar
