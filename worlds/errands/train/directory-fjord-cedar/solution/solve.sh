#!/bin/sh
mkdir fjord cedar
